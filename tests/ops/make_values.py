"""Prints values.h: what PyTorch (in float64) computes for small inputs, as an independent check of the
reference kernels. Where PyTorch has no such op, the formula of the paper is written out here.

    python3 tests/ops/make_values.py | clang-format > tests/ops/values.h
"""
import math
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def values(i, text):
    """Element e of input i; test_values.c draws the same."""
    shape = [int(s) for s in text[text.index('[') + 1:text.index(']')].split(',') if s]
    style = text[text.index(']') + 1:]
    n = math.prod(shape)
    wave = [math.sin(0.7 * (e + 1) + 1.3 * i) for e in range(n)]
    if style == '+':
        wave = [abs(w) + 0.5 for w in wave]
    if style.startswith('<'):
        wave = [(7 * e + 3 * i + 1) % int(style[1:]) for e in range(n)]
        return torch.tensor(wave, dtype=torch.int64).reshape(shape)
    if style == '?':
        return torch.tensor([(e + i) % 3 != 0 for e in range(n)]).reshape(shape)
    return torch.tensor(wave).reshape(shape)


rows = []


def row(op, attrs, inputs, function):
    x = [None if t == '-' else values(i, t) for i, t in enumerate(inputs)]
    out = function(*x)
    for o, y in enumerate(out if isinstance(out, (tuple, list)) else [out]):
        if y is not None:
            rows.append((op, attrs, inputs, o, y.to(torch.float64).reshape(-1).tolist()))


for name, f in [('exp', torch.exp), ('tanh', torch.tanh), ('sigmoid', torch.sigmoid),
                ('relu', torch.relu), ('gelu', lambda x: F.gelu(x, approximate='tanh')),
                ('gelu_erf', F.gelu), ('silu', F.silu), ('abs', torch.abs), ('sign', torch.sign)]:
    row(name, '', ['f32[7]'], f)
for name, f in [('log', torch.log), ('sqrt', torch.sqrt), ('rsqrt', torch.rsqrt)]:
    row(name, '', ['f32[5]+'], f)
row('clip', 'low=-0.5 high=0.25', ['f32[7]'], lambda x: x.clamp(-0.5, 0.25))
row('cast', 'dtype=i32', ['f32[7]'], lambda x: x.to(torch.int32))
row('pow', '', ['f32[2,3]+', 'f32[3]'], torch.pow)
row('maximum', '', ['f32[2,3]', 'f32[3]'], torch.maximum)
row('minimum', '', ['f32[2,3]', 'f32[2,1]'], torch.minimum)
row('where', '', ['bool[2,3]?', 'f32[3]', 'f32[2,1]'], torch.where)
row('compare', 'relation=3', ['f32[2,3]', 'f32[3]'], lambda a, b: a <= b)

row('linear', '', ['f32[2,3]', 'f32[3,2,2]', 'f32[2,2]'],
    lambda x, w, b: torch.einsum('mk,kab->mab', x, w) + b)
row('linear', 'transposed=1', ['f32[2,3]', 'f32[4,3]', 'f32[4]'], F.linear)
row('matmul', 'transpose_a=1', ['f32[2,3,2]', 'f32[3,4]'], lambda a, b: a.mT @ b)
row('matmul', 'transpose_b=1', ['f32[2,1,2,3]', 'f32[2,4,3]'], lambda a, b: a @ b.mT)
row('sum', 'axes=(0,2)', ['f32[2,3,2]'], lambda x: x.sum((0, 2)))
row('mean', 'axes=(1) keep=1', ['f32[2,3,2]'], lambda x: x.mean(1, keepdim=True))
row('max', 'axes=(0,1)', ['f32[2,3,2]'], lambda x: x.amax((0, 1)))
row('argmax', 'axis=1', ['f32[2,5,2]'], lambda x: x.argmax(1))
row('sum_to', 'shape=(3,1)', ['f32[2,3,4]'], lambda x: x.sum((0, 2)).reshape(3, 1))
row('softmax', 'axis=1', ['f32[2,3,2]'], lambda x: x.softmax(1))
row('log_softmax', 'axis=1', ['f32[2,5]'], lambda x: x.log_softmax(1))
row('cross_entropy', 'ignore=2', ['f32[5,4]', 'i32[5]<4'],
    lambda x, t: F.cross_entropy(x, t, ignore_index=2))
row('cross_entropy', 'ignore=3 smoothing=0.2', ['f32[7,5]', 'i32[7]<5'],
    lambda x, t: F.cross_entropy(x, t, ignore_index=3, label_smoothing=0.2))
row('mse', '', ['f32[2,3]', 'f32[2,3]'], F.mse_loss)
row('layer_norm', 'eps=0.01', ['f32[2,5]', 'f32[5]', 'f32[5]'],
    lambda x, g, b: F.layer_norm(x, (5,), g, b, 0.01))
row('rms_norm', 'eps=0.01', ['f32[2,5]', 'f32[5]'], lambda x, g: F.rms_norm(x, (5,), g, 0.01))
row('batch_norm_train', 'eps=0.01', ['f32[3,2,2]', 'f32[2]', 'f32[2]'],
    lambda x, g, b: (F.batch_norm(x, None, None, g, b, True, 0.1, 0.01), x.mean((0, 2)),
                     x.var((0, 2), unbiased=False)))
row('batch_norm_infer', 'eps=0.01', ['f32[3,2,2]', 'f32[2]', 'f32[2]', 'f32[2]', 'f32[2]+'],
    lambda x, g, b, m, v: F.batch_norm(x, m, v, g, b, False, 0.1, 0.01))
row('embedding', '', ['f32[5,3]', 'i32[2,2]<5'], lambda t, i: t[i])


def attend(q, k, v, mask=None, causal=False, scale=None):
    tq, tk, group = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    if causal:
        mask = torch.ones(tq, tk).tril(tk - tq).bool()
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2)


row('attention', '', ['f32[1,2,2,2]', 'f32[1,3,2,2]', 'f32[1,3,2,2]'], attend)
row('attention', 'causal=1', ['f32[1,2,4,2]', 'f32[1,3,2,2]', 'f32[1,3,2,2]'],
    lambda q, k, v: attend(q, k, v, causal=True))
row('attention', 'scale=0.3', ['f32[2,2,1,2]', 'f32[2,3,1,2]', 'f32[2,3,1,2]', 'f32[2,1,2,3]'],
    lambda q, k, v, m: attend(q, k, v, m, scale=0.3))
row('attention', '', ['f32[1,2,2,2]', 'f32[1,3,2,2]', 'f32[1,3,2,2]', 'bool[1,2,2,3]?'], attend)


def llama3(frequency, factor, low, high, original):
    """As Hugging Face's rope_type "llama3"."""
    wavelength = 2 * math.pi / frequency
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * frequency / factor + smooth * frequency
    return torch.where(wavelength > original / low, frequency / factor,
                       torch.where(wavelength < original / high, frequency, blended))


def rope(x, theta, position, scaled=lambda frequency: frequency):
    """As Hugging Face's Llama: x cos + rotate_half(x) sin."""
    half = x.shape[3] // 2
    frequency = scaled(torch.tensor(float(theta), dtype=torch.float64) ** (-torch.arange(half) / half))
    angle = (torch.arange(x.shape[1]) + position)[:, None] * frequency
    angle = torch.cat([angle, angle], 1)[:, None]
    return x * angle.cos() + torch.cat([-x[..., half:], x[..., :half]], 3) * angle.sin()


row('rope', 'theta=100 offset=2', ['f32[1,3,2,4]'], lambda x: rope(x, 100.0, 2))
row('rope', 'theta=100', ['f32[1,2,1,6]', 'i32[]<5'], lambda x, p: rope(x, 100.0, p))
row('rope', 'theta=100 factor=4', ['f32[1,3,1,6]'], lambda x: rope(x, 100.0, 0, lambda f: f / 4))
row('rope', 'theta=100 offset=5 factor=8 low=1 high=4 original=32', ['f32[1,2,1,12]'],
    lambda x: rope(x, 100.0, 5, lambda f: llama3(f, 8, 1, 4, 32)))

row('conv2d', 'stride=(2,1) padding=(1,2) dilation=(1,2)', ['f32[1,2,4,3]', 'f32[2,2,2,3]', 'f32[2]'],
    lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2), (1, 2)))
row('conv2d', 'groups=2', ['f32[1,4,3,3]', 'f32[4,2,2,2]'], lambda x, w: F.conv2d(x, w, groups=2))
row('conv3d', 'stride=(1,2,1) padding=(1,0,1)', ['f32[1,2,2,3,2]', 'f32[2,2,2,2,2]', 'f32[2]'],
    lambda x, w, b: F.conv3d(x, w, b, (1, 2, 1), (1, 0, 1)))
row('max_pool2d', 'kernel=(3,2) stride=(2,1) padding=(1,1)', ['f32[1,2,5,3]'],
    lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 1)))
row('avg_pool2d', 'kernel=(3,2) stride=(2,1) padding=(1,1)', ['f32[1,2,5,3]'],
    lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 1), count_include_pad=False))

row('transpose', 'order=(2,0,1)', ['f32[2,3,2]'], lambda x: x.permute(2, 0, 1))
row('slice', 'axis=1 begin=1 end=3', ['f32[2,4]'], lambda x: x[:, 1:3])
row('concat', 'axis=1', ['f32[2,1,2]', 'f32[2,2,2]'], lambda a, b: torch.cat([a, b], 1))
row('chunk', 'axis=1 parts=2', ['f32[2,4]'], lambda x: x.split(2, 1))
row('pad', 'before=(1,0) after=(0,2) value=0.5', ['f32[2,2]'], lambda x: F.pad(x, (0, 2, 1, 0), value=0.5))
row('gather', 'axis=1', ['f32[2,3,2]', 'i32[4]<3'], lambda x, i: x.index_select(1, i))
row('scatter_add', 'axis=1', ['f32[2,3]', 'i32[4]<3', 'f32[2,4]'], lambda x, i, u: x.index_add(1, i, u))
row('one_hot', 'classes=4', ['i32[3]<4'], lambda i: F.one_hot(i, 4))
row('top_k', 'k=3', ['f32[2,6]'], lambda x: tuple(x.topk(3)))


# Three steps from zero state, gradients cos(0.7 (e + 1) + step).
def train(op, attrs, shape, make):
    n = math.prod(shape)
    p = values(0, 'f32[%s]' % ','.join(map(str, shape)))
    step = make(p)
    for s in range(1, 4):
        step(s, torch.tensor([math.cos(0.7 * (e + 1) + s) for e in range(n)]).reshape(shape))
    rows.append((op, attrs, [','.join(map(str, shape))], -1, p.reshape(-1).tolist()))


def of_torch(cls, **options):
    def make(p):
        p.requires_grad_()
        optimizer = cls([p], lr=0.1, **options)

        def step(_, grad):
            p.grad = grad
            optimizer.step()
        return step
    return make


def adam_ratio(m, v, g, s, b1, b2, eps):
    m.mul_(b1).add_(g * (1 - b1))
    v.mul_(b2).add_(g * g * (1 - b2))
    return (m / (1 - b1 ** s)) / ((v / (1 - b2 ** s)).sqrt() + eps)


def lion(p, lr=0.1, b1=0.9, b2=0.99, decay=0.2):
    m = torch.zeros_like(p)

    def step(_, g):
        update = (m * b1 + g * (1 - b1)).sign()
        p.sub_(lr * (update + decay * p))
        m.mul_(b2).add_(g * (1 - b2))
    return step


def lamb(p, lr=0.1, decay=0.2):
    m, v = torch.zeros_like(p), torch.zeros_like(p)

    def step(s, g):
        u = adam_ratio(m, v, g, s, 0.9, 0.999, 1e-6) + decay * p
        p.sub_(lr * p.norm() / u.norm() * u)
    return step


def adafactor(p, lr=0.1, decay=0.2, factored=True):
    row_, col = torch.zeros_like(p.sum(-1)), torch.zeros_like(p.sum(-2)) if factored else None
    full = torch.zeros_like(p)

    def step(s, g):
        b2 = 1 - s ** -0.8
        square = g * g + 1e-30
        if factored:
            row_.mul_(b2).add_(square.mean(-1) * (1 - b2))
            col.mul_(b2).add_(square.mean(-2) * (1 - b2))
            v = row_.unsqueeze(-1) * col.unsqueeze(-2) / row_.mean(-1)[..., None, None]
        else:
            full.mul_(b2).add_(square * (1 - b2))
            v = full
        u = g / v.sqrt()
        u = u / max(1.0, u.square().mean().sqrt().item())
        rate = lr * max(1e-3, p.square().mean().sqrt().item())
        p.sub_(rate * (u + decay * p))
    return step


train('opt_sgd', 'weight_decay=0.2', [3], of_torch(torch.optim.SGD, weight_decay=0.2))
train('opt_sgd', 'momentum=0.9 weight_decay=0.2', [3],
      of_torch(torch.optim.SGD, momentum=0.9, weight_decay=0.2))
train('opt_sgd', 'momentum=0.9 nesterov=1', [3], of_torch(torch.optim.SGD, momentum=0.9, nesterov=True))
train('opt_adam', 'weight_decay=0.2', [3], of_torch(torch.optim.Adam, weight_decay=0.2))
train('opt_adamw', 'weight_decay=0.2', [3], of_torch(torch.optim.AdamW, weight_decay=0.2))
train('opt_adagrad', 'weight_decay=0.2 initial_accumulator=0.1 eps=1e-3', [3],
      of_torch(torch.optim.Adagrad, weight_decay=0.2, initial_accumulator_value=0.1, eps=1e-3))
train('opt_adagrad', '', [3], of_torch(torch.optim.Adagrad))
train('opt_lion', 'weight_decay=0.2', [3], lion)
train('opt_lamb', 'weight_decay=0.2', [2, 2], lamb)
train('opt_adafactor', 'weight_decay=0.2', [2, 3, 2], adafactor)
train('opt_adafactor1', 'weight_decay=0.2', [3], lambda p: adafactor(p, factored=False))

print('/* Made by make_values.py with PyTorch %s in float64: do not edit. */' % torch.__version__.split('+')[0])
print('static const value_row value_rows[] = {')
for op, attrs, inputs, o, y in rows:
    listed = ', '.join('"%s"' % t for t in inputs)
    numbers = ['%.17g' % v for v in y]
    print('    {"%s", "%s", {%s}, %d, %d,' % (op, attrs, listed, o, len(y)))
    lines = [numbers[k:k + 4] for k in range(0, len(numbers), 4)]
    print('     {' + ',\n      '.join(', '.join(line) for line in lines) + '}},')
print('};')

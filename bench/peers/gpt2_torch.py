#!/usr/bin/env python3
"""Time training steps of GPT-2 124M in plain PyTorch on the CPU.

One step is: forward, cross entropy, backward, AdamW, gradients dropped.
Weights and tokens are random; there is no dropout and no clipping.  See
stepper.py for the output and for the interactive protocol.
"""

import math

import stepper


def arguments():
    parser = stepper.base_parser(__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--positions", type=int, default=1024)
    return parser.parse_args()


ARGS = arguments()
torch = stepper.prepare(ARGS)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Attention(nn.Module):
    """Causal self-attention with one projection for queries, keys, values."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x):
        batch, seq, width = x.shape
        parts = self.c_attn(x).split(width, dim=2)
        q, k, v = (part.view(batch, seq, self.heads, -1).transpose(1, 2)
                   for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, seq, width)
        return self.c_proj(y)


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-5)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width, eps=1e-5)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        h = F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")
        return x + self.c_proj(h)


class GPT2(nn.Module):
    """GPT-2; the output layer shares the token embedding's weight."""

    def __init__(self, vocab, positions, layers, heads, width):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(positions, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, eps=1e-5)
        for name, weight in self.named_parameters():
            if weight.dim() >= 2:
                residual = name.endswith("c_proj.weight")
                scale = 1 / math.sqrt(2 * layers) if residual else 1.0
                nn.init.normal_(weight, std=0.02 * scale)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, ids, targets):
        """The mean cross entropy over all positions."""
        place = torch.arange(ids.shape[1])
        x = self.wte(ids) + self.wpe(place)
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]),
                               targets.reshape(-1))


def main():
    args = ARGS
    model = GPT2(args.vocab, args.positions, args.layers, args.heads,
                 args.width)
    if args.precision == "bf16" and args.bf16_mode == "full":
        model = model.to(torch.bfloat16)
    count = sum(weight.numel() for weight in model.parameters())
    groups = [
        {"params": [w for w in model.parameters() if w.dim() >= 2],
         "weight_decay": 0.1},
        {"params": [w for w in model.parameters() if w.dim() < 2],
         "weight_decay": 0.0},
    ]
    optimizer, form = stepper.fastest(
        lambda **kw: torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95),
                                       eps=1e-8, **kw))
    forward = stepper.compiled(torch, model, args)
    source = torch.Generator().manual_seed(args.seed)

    def step():
        tokens = torch.randint(args.vocab, (args.batch, args.seq + 1),
                               generator=source)
        with stepper.autocast(torch, args):
            loss = forward(tokens[:, :-1].contiguous(),
                           tokens[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    stepper.drive(args, step, args.batch * args.seq, "tokens_per_second", {
        "model": "gpt2", "parameters": count, "optimizer": f"adamw-{form}",
        "batch": args.batch, "seq": args.seq})


if __name__ == "__main__":
    main()

"""GPT-2 in plain PyTorch, for the timing scripts.

Import it when stepper.prepare has settled the threads.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal self-attention with one projection for queries, keys, values.

    by_head: the projection's rows lie head by head, so that a part of them
    is that of whole heads.
    """

    def __init__(self, width, heads, by_head):
        super().__init__()
        self.head_width = width // heads
        self.by_head = by_head
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def split(self, x):
        """Queries, keys and values, [batch, heads, seq, head width]."""
        batch, seq, width = x.shape
        if self.by_head:
            parts = x.view(batch, seq, -1, 3, self.head_width).unbind(3)
        else:
            parts = (part.view(batch, seq, -1, self.head_width)
                     for part in x.split(width // 3, dim=2))
        return (part.transpose(1, 2) for part in parts)

    def forward(self, x):
        q, k, v = self.split(self.c_attn(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, width, heads, by_head):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-5)
        self.attn = Attention(width, heads, by_head)
        self.ln_2 = nn.LayerNorm(width, eps=1e-5)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        h = F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")
        return x + self.c_proj(h)


class Head(nn.Module):
    """The output layer, with a weight that is another module's."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return F.linear(x, self.weight)


class GPT2(nn.Module):
    """GPT-2; the output layer shares the token embedding's weight."""

    def __init__(self, vocab, positions, layers, heads, width, by_head=False):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(positions, width)
        self.h = nn.ModuleList(Block(width, heads, by_head)
                               for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, eps=1e-5)
        self.head = Head(self.wte.weight)
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
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def groups(model):
    """Parameter groups for AdamW: matrices decay; positions and vectors do not.

    A group has parameters of one type only: a fused update does not take
    distributed and plain tensors together.
    """
    found = {}
    for name, weight in model.named_parameters():
        matrix = weight.dim() >= 2 and "wpe" not in name
        found.setdefault((matrix, type(weight.data)), []).append(weight)
    return [{"params": weights, "weight_decay": 0.1 if matrix else 0.0}
            for (matrix, _), weights in found.items()]

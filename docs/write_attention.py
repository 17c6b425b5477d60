"""Writes docs/attention.md from the code: what each kernel supports, what `auto` picks, and what a mask's tiles are.

    python docs/write_attention.py

A test holds the page to what this writes.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pellucid.masks import Causal, Full, Heads, Mask, Padding, Prefix, Segments, Window
from pellucid.model.bias import Relative
from pellucid.model.kernels import Call, Kernel, choose, explain, unable

PAGE = Path(__file__).with_name("attention.md")
KERNELS: tuple[Kernel, ...] = ("formula", "fused", "blocks", "flex")

OPENING = """\
# Attention

One formula, softmax(Q Kᵀ / √d) V over the keys that a query may see, and four kernels that compute it under one
signature. [`attention.py`](../src/pellucid/model/attention.py) holds the formula, which is the specification; the tests
hold every kernel to it to 1e-10 in float64, gradients too where the kernel has them. Gradients of gradients and
`torch.func` need the formula.

```python
import torch
from pellucid.masks import Causal, Window
from pellucid.model import attend

query, key, value = (torch.randn(1, 8, 2048, 64) for _ in range(3))
look = Causal() & Window(before=256, after=0)
attended, explanation = attend(query, key, value, mask=look, explain=True)
print(attended.shape, explanation.backend)
```

```text
torch.Size([1, 8, 2048, 64]) blocks
```

| `backend` | what it is | memory |
|---|---|---|
| `formula` | the paper's equation 1, as it is written; it alone gives weights | queries × keys |
| `fused` | torch's `scaled_dot_product_attention`, given as little of a mask as it can be: nothing, its own causal flag, \
a row for each sample, or all cells | the mask's: none, a row, or queries × keys; all scores with dropout, a bias that \
learns, or values not as wide as keys |
| `blocks` | tiles of the scores that the mask lets be seen, forward and backward, joined exactly by their logarithms; on \
a CPU each tile is torch's own fused kernel | linear in the length |
| `flex` | torch's FlexAttention with a `BlockMask` made once for a mask and its sizes; compiled, but for float64 and \
where there is no C++ compiler | linear where it is compiled |
| `auto` | the one that the mask's structure and the sizes make fastest | |

A query that may see nothing is given zeros and finite gradients by all of them.

This page is written by `docs/write_attention.py`.

## What each kernel supports, on a CPU

A kernel that was asked for and cannot compute a call hands it to one that can; `explain=True` says so, and why.

"""


class Feature(NamedTuple):
    """Something that may be asked of attention, and a call that asks it."""

    name: str
    call: Call


def asked(
    *,
    mask: Mask = Full(),  # noqa: B008 - a value
    queries: int = 40,
    key_heads: int = 6,
    dtype: torch.dtype = torch.float32,
    learns: bool = False,
    bias: Tensor | Relative | None = None,
    dropout: float = 0.0,
) -> Call:
    """A call of two samples, six heads of eight and forty keys."""
    draw = torch.Generator().manual_seed(1)
    query = torch.randn(2, 6, queries, 8, dtype=dtype, generator=draw).requires_grad_(learns)
    key, value = (torch.randn(2, key_heads, 40, 8, dtype=dtype, generator=draw) for _ in range(2))
    return Call(query, key, value, mask, bias, 40 - queries if mask == Causal() else 0, dropout)


def features() -> list[Feature]:
    """What the table tells of."""
    offsets = torch.zeros(6, 79)
    return [
        Feature(
            "any mask: padding, causal, windows, documents, their joins and inverses",
            asked(mask=Causal() & Padding((40, 20))),
        ),
        Feature("a mask of its own for each head", asked(mask=Heads([Causal(), Full()] * 3))),
        Feature("cross-attention: fewer queries than keys, or more", asked(queries=30)),
        Feature("a cached step", asked(mask=Causal(), queries=1)),
        Feature("fewer key-value heads", asked(key_heads=2)),
        Feature("a bias that is a tensor", asked(bias=torch.zeros(1, 6, 40, 40))),
        Feature("a bias of distances (`Relative`: ALiBi, T5)", asked(bias=Relative(offsets, -39))),
        Feature("a cached step with a bias", asked(mask=Causal(), queries=1, bias=Relative(offsets, -39))),
        Feature("gradients of queries, keys and values", asked(learns=True)),
        Feature("gradients of the bias", asked(bias=Relative(offsets.clone().requires_grad_(), -39))),
        Feature("dropout", asked(dropout=0.1)),
        Feature("float64", asked(dtype=torch.float64)),
        Feature("float32", asked()),
        Feature("bfloat16", asked(dtype=torch.bfloat16)),
        Feature("float16", asked(dtype=torch.float16)),
    ]


def support() -> str:
    """The table: yes, or who computes it instead and why."""
    lines = ["| | " + " | ".join(f"`{kernel}`" for kernel in KERNELS) + " |", "|---" * (len(KERNELS) + 1) + "|"]
    for feature in features():
        cells = []
        for kernel in KERNELS:
            reason = unable(kernel, feature.call)
            cells.append("yes" if reason is None else f"`{choose(feature.call, kernel)[0]}`: {reason}")
        lines.append(f"| {feature.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


MEASURED = """
## Measured

Milliseconds on 2 cores (AMD EPYC, AVX2), one sample, 8 heads of 64, float32, medians of interleaved laps, as
`python benchmarks/attention.py --targets --laps 3 --budget 3` printed them; it compares the results, too. The dense
kernel is torch's `scaled_dot_product_attention` under a mask of all cells.

| mask | tokens | pass | `auto` | dense kernel | compiled FlexAttention |
|---|---|---|---|---|---|
| causal, window of 256 | 16,384 | forward | 244 | 7,086 (28.4 times) | 355 (1.5 times) |
| causal, window of 256 | 16,384 | forward and backward | 994 | 22,555 (27.4 times) | none on a CPU |
| sixteen documents of 1,024 | 16,384 | forward | 282 | 7,119 (25.2 times) | |
| sixteen documents of 1,024 | 16,384 | forward and backward | 1,125 | 23,327 (20.5 times) | none on a CPU |

Under the window, a pass holds 46 MB more at its highest than before it, with the backward pass 179 MB.
"""

LENGTH = 2048
MASKS: list[tuple[str, Mask]] = [
    ("Full()", Full()),
    ("Causal()", Causal()),
    ("Causal() & Window(256, 0)", Causal() & Window(256, 0)),
    ("Causal() & Padding((1500,))", Causal() & Padding((1500,))),
    ("Padding((2000,))", Padding((2000,))),
    ("Causal() | Prefix(512)", Causal() | Prefix(512)),
    ("Causal() & Segments: 8 documents", Causal() & Segments([[place // 256 for place in range(LENGTH)]])),
]


def long_call(mask: Mask, length: int = LENGTH) -> Call:
    """One sample and eight heads of 64, which hold no memory."""
    states = torch.zeros(1).expand(1, 8, length, 64)
    return Call.of(states, states, states, mask, None, 0, 0.0)


def choices() -> str:
    """What `auto` picks for some masks at one length."""
    lines = ["| mask | `auto` | why | tiles | cells in them |", "|---|---|---|---|---|"]
    for name, mask in MASKS:
        told = explain(long_call(mask), "auto")
        cell = name.replace("|", "\\|")
        lines.append(f"| `{cell}` | `{told.backend}` | {told.reason} | {told.tiles:,} | {told.computed:.1%} |")
    return "\n".join(lines)


BETWEEN = f"""

## What `auto` picks

A mask answers what each of its blocks of 128 x 128 is, empty, partial or full: `mask.blocks(queries, keys)`. Its
expression tells most of them, and only of those that it leaves open the cells are looked at. From these
come the tiles: full stretches, triangles under the diagonal, and rectangles with a few cells of mask, which all strips of a
window share. `auto` compares what they cost with what torch's kernel costs for all cells, and takes the tiles
wherever that kernel would hold all scores or a mask of more than four million cells. What was found for a mask is kept, but
for those that hold a `Predicate` or a large `Dense`. On a GPU, where nothing has been measured yet, it takes FlexAttention
where more than half of the cells can be left out.

At {LENGTH:,} tokens:

"""

EXPLAINED = """

In a terminal, `--plan` says the same of any mask and size:

```
pellucid mask "causal & window(256, 0)" --queries 1024 --keys 1024 --plan
```

```text
{plan}
```
"""


def written() -> str:
    """The whole page."""
    plan = explain(long_call(Causal() & Window(256, 0), 1024), "auto")
    return OPENING + support() + BETWEEN + choices() + EXPLAINED.format(plan=plan) + MEASURED


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")

"""Writes docs/masks.md from the code: each kind's formula, its picture, and what it becomes in other libraries.

    python docs/write_masks.py

A test holds the page to what this writes.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid import masks
from pellucid.masks import BlindRows, Mask
from pellucid.masks.conventions import CONVENTIONS

PAGE = Path(__file__).with_name("masks.md")
QUERIES = KEYS = 6
HEADS = 2

OPENING = """\
# Masks

A mask says which key each query may look at. In Pellucid it is a value, made once and passed: **True = may look**, and
positions are absolute, so a cached step is a row of the whole. `&`, `|`, `~`, `-` and `^` combine masks, `==` and
`hash` compare them as they are written, `a <= b` asks whether one sees no more than the other.

```python
from pellucid.masks import Causal, Padding

look = Causal() & Padding((4, 2))
print(look.draw(queries=4, keys=4))
print(look.counts(queries=4, keys=4).tolist())
```

```text
{first}
```

The same from a shell: `pellucid mask "causal & padding(4, 2)"`; `--as sdpa` prints it as a library's arguments, `--png`
draws it.

This page is written by `docs/write_masks.py`.

## The kinds

Below, `b` is the sample, `h` the head, `q` and `k` the absolute positions of query and key. Each picture is of {queries}
queries and {keys} keys; the table says what `mask.to(library, ...)` hands out for it, with {heads} heads for torch's 3-D
masks. A library's own shortcut is used exactly where it is equal.
"""

KINDS: list[tuple[str, str, str]] = [
    ("Full()", "True", "Every query sees every key."),
    ("Causal()", "k <= q", "A decoder's self-attention: nothing ahead of the query."),
    (
        "Window(before=2, after=1)",
        "q - before <= k <= q + after",
        "Local attention. `before` and `after` count the keys beside the query, which always sees itself: the window of W "
        "of other libraries may be W, W + 1 or 2 W + 1 keys.",
    ),
    (
        "Padding((6, 3))",
        "k < lengths[b]",
        "Real keys, padding on the right. `Padding.from_tokens` finds out where padding stands.",
    ),
    ("~Padding((0, 2))", "k >= pads[b]", "Padding on the left, as decoder-only models are batched for generation."),
    (
        "Causal() | Prefix(3)",
        "k <= q or k < lengths[b]",
        "A prefix language model: the prefix is seen by all, the rest causally.",
    ),
    (
        "Segments(((0, 0, 0, 1, 1, 2),)) & Causal()",
        "ids[b][q] == ids[b][k]",
        "Documents packed into one row, each blind to the others; here causal as well.",
    ),
    ("Chunked(2)", "q // size == k // size", "Attention inside chunks of `size` positions."),
    ("Dilated(2)", "(q - k) % step == 0", "Every `step`-th key, counted from the query."),
    (
        "Global(0) | Window(before=1, after=1)",
        "q in at or k in at",
        "Longformer: some positions see all and are seen by all.",
    ),
    ("Heads((Causal(), Window(before=1, after=1)))", "head h uses masks[h]", "A mask of its own for each head."),
]

CLOSING = """\
Two more kinds hold what others made: `Dense(tensor)` a bool tensor, and `Predicate(mask_mod)` a function as FlexAttention
takes it. `masks.recognise(tensor)` goes the other way: it finds the shortest expression that gives a tensor, or says
which cell spoiled the nearest.

```python
import torch

from pellucid import masks

look = torch.ones(5, 5).tril().bool() & (torch.arange(5) < 3)
print(masks.recognise(look))
look[1, 4] = True
print(masks.recognise(look))
print(masks.difference(masks.Causal(), masks.Causal() & masks.Window(1, 0), queries=3, keys=3))
```

```text
{last}
```

## The conventions

`mask.to(name, queries=..., keys=...)` gives the keyword arguments of a library, `masks.read(name, ...)` makes a mask of
them; what can be read in two ways is refused with both shapes or both meanings in the message.

{conventions}

A row that may look at nothing is zero in Pellucid, with finite gradients. Other libraries differ; `to` warns what they do
where a mask has such a row, and `blind="refuse"` raises.
"""


def written() -> str:
    """The whole page."""
    look = masks.Causal() & masks.Padding((4, 2))
    first = f"{look.draw(queries=4, keys=4)}\n{look.counts(queries=4, keys=4).tolist()}"
    parts = [OPENING.format(first=first, queries=QUERIES, keys=KEYS, heads=HEADS)]
    parts += [_kind(*kind) for kind in KINDS]
    parts.append(CLOSING.format(last=_last(), conventions=_conventions()))
    return "\n".join(parts)


def _kind(expression: str, formula: str, meaning: str) -> str:
    """One kind: its heading, formula, picture and exports."""
    mask = masks.parse(expression)
    picture = "\n".join(mask.draw(QUERIES, KEYS).split("\n")[1:])
    rows = ["| library | arguments |", "| --- | --- |"]
    rows += [f"| `{name}` | {_arguments(mask, name)} |" for name in CONVENTIONS if name != "transformer"]
    return f"### `{expression}`\n\n`{formula}`. {meaning}\n\n```text\n{picture}\n```\n\n" + "\n".join(rows) + "\n"


def _arguments(mask: Mask, name: str) -> str:
    """What the mask becomes, in a line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlindRows)
        # A row of torch's 3-D tensor stands for one sample and head, so it must be told how many there are.
        told = {"batch": mask.batch or 1, "heads": mask.heads or HEADS} if name == "multihead_attention" else {}
        made = mask.to(name, queries=QUERIES, keys=KEYS, **told)
    return ", ".join(f"`{argument}={_short(value)}`" for argument, value in made.items()) or "none: nothing is hidden"


def _short(value: Any) -> str:
    """A value as its type and shape; a truth value as it is."""
    if isinstance(value, bool) or not hasattr(value, "shape"):
        return str(value)
    kind = (
        str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) or hasattr(value, "dtype") else "BlockMask"
    )
    return f"{kind} {tuple(value.shape)}"


def _last() -> str:
    """What the example at the end prints."""
    look = torch.ones(5, 5).tril().bool() & (torch.arange(5) < 3)
    lines = [masks.recognise(look)]
    look[1, 4] = True
    lines.append(masks.recognise(look))
    difference = masks.difference(masks.Causal(), masks.Causal() & masks.Window(1, 0), queries=3, keys=3)
    return "\n".join(map(str, [*lines, difference]))


def _conventions() -> str:
    """The table of libraries."""
    rows = ["| name | library | which way round |", "| --- | --- | --- |"]
    rows += [f"| `{name}` | `{one.library}` | {one.meaning} |" for name, one in CONVENTIONS.items()]
    return "\n".join(rows)


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")

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


def odd_or_before(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
    """Odd keys, and those before the query: a mask_mod as people write them."""
    return (k % 2 == 1) | (k <= q)


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
draws it, and `--plan` says how `attend` would compute it, and why.

This page is written by `docs/write_masks.py`.

## The kinds

Below, `b` is the sample, `h` the head, `q` and `k` the absolute positions of query and key. Each picture is of {queries}
queries and {keys} keys; the table says what `mask.to(library, ...)` hands out for it, with {heads} heads for torch's 3-D
masks. A library's own shortcut is used exactly where it is equal.
"""

KINDS: list[tuple[str, Mask, str, str]] = [
    (kind, mask if isinstance(mask, Mask) else masks.parse(mask), formula, meaning)
    for kind, mask, formula, meaning in (
        ("Full", "full", "True", "Every query sees every key."),
        ("Causal", "causal", "k <= q", "A decoder's self-attention: nothing ahead of the query."),
        (
            "Window",
            "window(before=2, after=1)",
            "q - 2 <= k <= q + 1",
            "Local attention. `before` and `after` count the keys beside the query, which always sees itself: the window "
            "of W of other libraries may be W, W + 1 or 2 W + 1 keys.",
        ),
        (
            "Padding",
            "padding(6, 3)",
            "k < (6, 3)[b]",
            "Real keys, padding on the right. `Padding.from_tokens` finds out where padding stands.",
        ),
        (
            "Padding, on the left",
            "~padding(0, 2)",
            "not k < (0, 2)[b]",
            "The inverse: as decoder-only models are batched for generation.",
        ),
        (
            "Prefix",
            "causal | prefix(3)",
            "k <= q or k < 3",
            "A prefix language model: the prefix is seen by all, the rest causally. Prefixes may differ by sample.",
        ),
        (
            "Segments",
            "segments(0, 0, 0, 1, 1, 2)",
            "(0, 0, 0, 1, 1, 2)[q] == (0, 0, 0, 1, 1, 2)[k]",
            "Documents packed into one row, each blind to the others; with `causal &` for a language model.",
        ),
        ("Chunked", "chunked(4)", "q // 4 == k // 4", "Attention inside chunks of so many positions."),
        ("Dilated", "dilated(2)", "(q - k) % 2 == 0", "Every second key, counted from the query."),
        (
            "Global",
            "global(0) | window(1, 1)",
            "q == 0 or k == 0 or q - 1 <= k <= q + 1",
            "Longformer: some positions see all and are seen by all.",
        ),
        (
            "Heads",
            "heads(causal, window(1, 1))",
            "(k <= q, q - 1 <= k <= q + 1)[h]",
            "A mask of its own for each head.",
        ),
        (
            "Dense",
            masks.Dense(torch.arange(6) % 3 != torch.arange(6)[:, None] % 3),
            "k % 3 != q % 3",
            "Anybody's bool tensor, copied; here one of (6, 6).",
        ),
        (
            "Predicate",
            masks.Predicate(odd_or_before),
            "k % 2 == 1 or k <= q",
            "Anybody's function, as FlexAttention takes it: `mask_mod(b, h, q, k)`.",
        ),
    )
]

CLOSING = """\
## Back from a tensor

`masks.recognise(tensor)` finds the shortest expression that gives a tensor, or says which cell spoiled the nearest;
`masks.difference(a, b, ...)` shows where two masks differ.

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

A decoder-only model of Hugging Face hides the future by itself, and with `causal_model=True` is given no more than the
keys: {causal_model}. `torch.nn.Transformer` is given three masks at once,
`masks.seq2seq((5, 3), (4, 2)).to("transformer", source=5, target=4)`:

{nine}

A row that may look at nothing is zero in Pellucid, with finite gradients. Other libraries differ; `to` warns what they do
where a mask has such a row, and `blind="refuse"` raises.
"""


def written() -> str:
    """The whole page."""
    look = masks.Causal() & masks.Padding((4, 2))
    first = f"{look.draw(queries=4, keys=4)}\n{look.counts(queries=4, keys=4).tolist()}"
    parts = [OPENING.format(first=first, queries=QUERIES, keys=KEYS, heads=HEADS)]
    parts += [_kind(*kind) for kind in KINDS]
    parts.append(CLOSING.format(last=_last(), conventions=_conventions(), nine=_nine(), causal_model=_causal_model()))
    return "\n".join(parts)


def _kind(kind: str, mask: Mask, formula: str, meaning: str) -> str:
    """One kind: its heading, formula, picture and exports."""
    title, *picture = mask.draw(QUERIES, KEYS).split("\n")
    rows = ["| library | arguments |", "| --- | --- |"]
    rows += [f"| `{name}` | {_arguments(mask, name)} |" for name in CONVENTIONS if name != "transformer"]
    shown = "\n".join(picture)
    head = f"### {kind}\n\n`{title.partition('   ')[0]}`: `{formula}`. {meaning}"
    return f"{head}\n\n```text\n{shown}\n```\n\n" + "\n".join(rows) + "\n"


def _arguments(mask: Mask, name: str) -> str:
    """What the mask becomes, in a line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BlindRows)
        # A row of torch's 3-D tensor stands for one sample and head, so it must be told how many there are.
        rows = name == "multihead_attention"
        batch, heads = (mask.batch or 1, mask.heads or HEADS) if rows else (None, None)
        made = mask.to(name, queries=QUERIES, keys=KEYS, batch=batch, heads=heads)
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


def _causal_model() -> str:
    """What a causal model is given for a padded batch."""
    mask = masks.Causal() & masks.Padding((6, 3))
    made = mask.to("transformers", queries=QUERIES, keys=KEYS, causal_model=True)
    return f"`{mask!r}` becomes `attention_mask={_short(made['attention_mask'])}`"


def _nine() -> str:
    """The nine arguments of nn.Transformer."""
    made = masks.seq2seq((5, 3), (4, 2)).to("transformer", source=5, target=4)
    rows = [
        f"| `{name}` | {value if isinstance(value, bool | None) else _short(value)} |" for name, value in made.items()
    ]
    return "\n".join(["| argument | value |", "| --- | --- |", *rows])


def _conventions() -> str:
    """The table of libraries."""
    rows = ["| name | library | which way round |", "| --- | --- | --- |"]
    rows += [f"| `{name}` | `{one.taker}` | {one.meaning} |" for name, one in CONVENTIONS.items()]
    return "\n".join(rows)


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")

"""Writes docs/positions.md and its pictures from the code: what each scheme of positions tells, and how it is used.

    python docs/write_positions.py

A test holds the page to what this writes. Python blocks are run, and what they print is put below them.
"""

import contextlib
import io
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image

from pellucid import positions, view

PAGE = Path(__file__).with_name("positions.md")
PICTURES = PAGE.with_name("pictures")
LENGTH, TRAINED = 64, 48
# Those that learn, as in one side of the paper's base model.
BASE: dict[str, positions.Positions] = {
    "learned": positions.Learned(512, max_positions=1024),
    "t5": positions.T5Relative(num_heads=8),
}
ARXIV = re.compile(r"arXiv (\d{4}\.\d{5})")
PYTHON = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


class Scheme(NamedTuple):
    """What the page says of one scheme. The formula is Python, so that a test can hold it to the code."""

    setting: str
    drawn: positions.Positions
    door: str
    formula: str
    meaning: str
    cache: str
    left: str
    cross: str
    past: str


ROW_OF_TABLE = "A new token is given row t of the same table."
ROW_OF_ALL = "A new query is given row t of the whole."
BEGINNINGS = "`first` may be a tensor with each sample's own beginning, below 0; padding is told position 0."
TOLD_ALREADY = "Nothing of its own: sources and targets have been told, each counted from its own beginning."
APART = "None: sources and targets are counted apart, so no distance between them means anything."
NO_CARE = "Needs no care, as a distance does not change with what stands before both."


def schemes() -> list[Scheme]:
    """The schemes in the order of the page; what they learn is drawn from one seed, as before any training."""
    torch.manual_seed(1)
    return [
        Scheme(
            "sinusoidal",
            positions.Sinusoidal(64),
            "embeddings",
            "x[p][c] + (cos if c % 2 else sin)(p / 10000 ** (2 * (c // 2) / d_model))",
            "Waves of lengths from 2π to 10000 · 2π positions, a sine and a cosine of each (Vaswani et al. 2017, arXiv "
            "1706.03762, section 3.5). The cosine of two positions depends on their distance alone. "
            '`position_layout = "halves"` puts all sines first.',
            ROW_OF_TABLE,
            BEGINNINGS,
            TOLD_ALREADY,
            "The waves go on. A model does worse on lengths that it never saw.",
        ),
        Scheme(
            "learned",
            positions.Learned(64, max_positions=TRAINED),
            "embeddings",
            "x[p][c] + weight[p][c]",
            "A vector of its own for each of `max_positions` positions (Gehring et al. 2017, arXiv 1705.03122, section "
            "3.1). Before training, as drawn, no position is like another; that neighbours are alike must be learned.",
            ROW_OF_TABLE,
            BEGINNINGS,
            TOLD_ALREADY,
            "There is nothing: a position from `max_positions` on is a `PositionError`.",
        ),
        Scheme(
            "rotary",
            positions.Rotary(64),
            "queries and keys",
            "(x[a] + 1j * x[b]) * exp(1j * p / base ** (2 * i / head_dim))",
            "Each pair (a, b) of a head's dimensions is turned by an angle of its position (Su et al. 2021, arXiv "
            '2104.09864, section 3.4.2). Pair i is (2i, 2i + 1) with `pairs="interleaved"`, and (i, i + head_dim / 2) with '
            '`pairs="halves"`, as drawn. A score depends on the distance alone. Drawn is that of ones, which fades exactly '
            "as sinusoids of the same width do.",
            "Keys are kept as they were turned, and a new query is turned to position t.",
            "Needs no care: an angle may be negative. With `first` a tensor, positions count from each sample's beginning.",
            APART,
            "Scores meet angles that they never saw. `rotary_scaling` with `rotary_factor` avoids it: `linear` (Chen et "
            "al. 2023, arXiv 2306.15595), `ntk` or `yarn` (Peng et al. 2023, arXiv 2309.00071).",
        ),
        Scheme(
            "alibi",
            positions.ALiBi(num_heads=4),
            "scores",
            "score - slope[h] * abs(k - q)",
            "A straight line of the distance, a slope for each head: 2^(-8 / H), 2^(-16 / H), ... (Press et al. 2022, "
            "arXiv 2108.12409, section 3; where H is no power of two, by the published rule). An encoder looks both ways "
            "alike.",
            ROW_OF_ALL,
            NO_CARE,
            APART,
            "The line goes on, which is what the scheme was made for.",
        ),
        Scheme(
            "t5",
            positions.T5Relative(num_heads=4),
            "scores",
            "score + weight[bucket(k - q)][h]",
            "A number learned for each head and bucket of distances: near ones have a bucket each, farther ones share, "
            "wider and wider (Raffel et al. 2020, arXiv 1910.10683, section 2.1). An encoder tells keys ahead from those "
            "behind, as drawn; a decoder has all its buckets for those behind. The layers of a stack share the numbers, "
            "which are drawn as before training.",
            ROW_OF_ALL,
            NO_CARE,
            APART,
            "Distances from 128 on are one bucket; a bucket that no text reached is as it was at the start.",
        ),
        Scheme(
            "none",
            positions.NoPositions(),
            "nothing",
            "x[p][c]",
            "Nothing is told. A decoder still feels order through its causal mask (Haviv et al. 2022, arXiv 2203.16634); "
            "an encoder reads a bag of words.",
            "Nothing.",
            "Needs no care.",
            "None.",
            "Nothing changes, but for how many tokens there are to look at.",
        ),
    ]


OPENING = """\
# Positions

Attention by itself sees a set: turn the order of its keys around and it answers the same. A *scheme of positions* tells
it where tokens stand. Pellucid has five, and none, behind one interface with three doors:

- `scheme(states, first)` adds something to the embeddings, once, before the first layer;
- `scheme.rotate(heads, first)` turns queries and keys, in each self-attention;
- `scheme.bias(queries, keys, first_query)` adds something to the scores, in each self-attention.

Positions count from 0, and each door takes that of the first token it is given, so that a step of a cached generation
is told what its row of the whole is told.

![All schemes beside each other](pictures/positions.png)

Above, what each scheme tells; below it, how that fades with the distance. Past the dashed line no model was trained;
what is hatched cannot be told at all. This page is written by `docs/write_positions.py`.

## Choosing one

One setting swaps them, on both sides of the model: `positions = "rotary"` under `[model]` in a run's settings,
`--set model.positions=rotary` after `pellucid train`, or in Python:

```python
from pellucid import ModelConfig, Transformer

for name in ("sinusoidal", "learned", "rotary", "alibi", "t5", "none"):
    model = Transformer(ModelConfig.tiny(positions=name))
    print(f"{{name:10}} {{model.target_positions}}")
```

{table}

Numbers learned are those of one side of the paper's base model: 512 wide, 8 heads, `max_positions` 1024.

## The schemes

Below, `x` is a state or a head, `p` its position and `c` a dimension of it; `q` and `k` are the positions of query and
key, `h` is the head. Drawn are {length} positions, of which a model would have been trained on {trained}.
"""

CLOSING = """\
## By themselves

Each attention takes a scheme for its queries, keys and scores; what is added to embeddings is added by calling it:

```python
import torch

from pellucid import positions
from pellucid.masks import Causal
from pellucid.model import MultiHeadAttention

attention, states = MultiHeadAttention(d_model=12, num_heads=2), torch.randn(1, 5, 12)
rotary, alibi, sinusoid = positions.Rotary(head_dim=6), positions.ALiBi(num_heads=2), positions.Sinusoidal(d_model=12)
print(attention(states, states, states, mask=Causal(), positions=rotary).shape)

step = alibi.bias(queries=1, keys=3, first_query=2)  # the cached step at position 2: one query, three keys
print(step.scores(queries=1, keys=3, first_query=2)[0, 0].mul(16).int().tolist())

padded = torch.zeros(2, 5, 12)  # before the second sample stand two pads
print(torch.equal(sinusoid(padded, first=torch.tensor([0, -2]))[1, 2:], sinusoid(padded)[1, :3]))
```

## Other people's layouts

Rotary weights trained with one pairing work with the other once the rows of the projections of queries and keys are put
in its order. GPT-J and the original LLaMA turn interleaved pairs, GPT-NeoX and Hugging Face's LLaMA halves:

```python
def scores(query, key, pairs):
    turn = positions.Rotary(head_dim=6, pairs=pairs).rotate
    heads = [(states.double() @ weight.T).unflatten(2, (2, 6)).transpose(1, 2) for weight in (query, key)]
    return turn(heads[0]) @ turn(heads[1]).mT


theirs = torch.randn(12, 12).double(), torch.randn(12, 12).double()
ours = [positions.rotary_weights(weight, num_heads=2, to="interleaved") for weight in theirs]
print(torch.allclose(scores(*theirs, "halves"), scores(*ours, "interleaved")))

table = positions.Sinusoidal(d_model=6).table(length=5)
print(torch.equal(positions.interleaved_to_halves(table), positions.Sinusoidal(6, layout="halves").table(5)))
```

A sinusoid table in another order is not always this one: tensor2tensor and fairseq also space their wavelengths by
d_model / 2 - 1 steps where the paper has d_model / 2.

## A scheme of one's own

It opens one of the doors and leaves the others as they are. `view.positions` draws it as it does ours, from its doors:

```python
from pellucid import view
from pellucid.model.bias import Relative


class Logarithmic(positions.Positions):
    \"\"\"-log(1 + |k - q|) in every head: KERPLE's logarithmic kernel (Chi et al. 2022, arXiv 2205.09921), unlearned.\"\"\"

    def forward(self, states, first=0):
        return states  # nothing is added to embeddings

    def bias(self, queries, keys, first_query=0):
        offsets = torch.arange(1 - queries - first_query, keys - first_query)
        return Relative(-torch.log1p(offsets.abs())[None], least=1 - queries - first_query)


print(attention(states, states, states, mask=Causal(), positions=Logarithmic()).shape)
figure = view.positions({"ours": alibi, "KERPLE's": Logarithmic()}, length=32, trained=24)
print(view.save(figure, "positions.png"))
```
"""


def written() -> str:
    """The whole page."""
    every = schemes()
    opening = OPENING.format(table=_table(every), length=LENGTH, trained=TRAINED)
    return _run("\n".join([opening, *map(_section, every), CLOSING]))


def _table(every: list[Scheme]) -> str:
    """The schemes at a glance."""
    rows = ["| setting | class | acts on | numbers learned |", "| --- | --- | --- | --- |"]
    for one in every:
        numbers = sum(weight.numel() for weight in BASE.get(one.setting, one.drawn).parameters())
        rows.append(f"| `{one.setting}` | `{type(one.drawn).__name__}` | {one.door} | {numbers:,} |")
    return "\n".join(rows)


def _section(one: Scheme) -> str:
    """One scheme: its heading, formula, picture and habits."""
    name = type(one.drawn).__name__
    return f"""\
### {name}

`{one.formula}`. {_linked(one.meaning)}

![{name}: what it tells, and how it fades with the distance](pictures/positions-{one.setting}.png)

- **With a cache.** {one.cache}
- **Padding on the left.** {one.left}
- **In cross-attention.** {one.cross}
- **Past the trained length.** {_linked(one.past)}
"""


def _linked(text: str) -> str:
    """The text with a link at each paper."""
    return ARXIV.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def _run(page: str) -> str:
    """The page with what each Python block prints below it; all blocks share their names."""
    names: dict[str, object] = {"__name__": "page"}

    def printed(block: re.Match[str]) -> str:
        shown = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(shown):
            exec(block[1], names)
        return f"{block[0]}\n```text\n{shown.getvalue()}```\n"

    return PYTHON.sub(printed, page)


def draw(folder: Path) -> None:
    """Write every scheme's picture, and the sheet of all, whose colours are made few so that the file is small."""
    folder.mkdir(exist_ok=True)
    every = {one.setting: one.drawn for one in schemes()}
    for name, one in every.items():
        view.save(view.positions({name: one}, LENGTH, TRAINED), folder / f"positions-{name}.png")
    sheet = view.save(view.positions(every, LENGTH, TRAINED), folder / "positions.png")
    with Image.open(sheet) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(sheet, optimize=True)


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
    draw(PICTURES)

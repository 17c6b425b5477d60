"""Whether labels are the next inputs, rather than the inputs of the same position, or of another."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pellucid.check.report import Report
from pellucid.errors import CheckError

__all__ = ["shift"]

OFFSETS = (-2, -1, 0, 1, 2)
"""Where labels are looked for among the inputs, counted from their own position."""

FEWEST = 3
"""Pairs of real positions that say something."""

SHOWN = 3  # disagreements that are spelt out
DRAWN = 12  # positions that are drawn

UNSHIFTED = (
    "not shifted: each label is the input of its own position, so the model need only copy it; give inputs=ids[:, :-1] and "
    "labels=ids[:, 1:], or, to a causal model of Hugging Face, which shifts inside, both as they are, and check shift=0"
)
BACKWARDS = (
    "shifted backwards: the input at a position is the label of the next, so the decoder is fed its labels' future and "
    "asked for what it has just read; put the begin mark before the inputs, and labels one later: labels=ids[:, 1:]"
)
TWICE = (
    "shifted twice: each label is the input after the next, so one is never learned; shift once, by hand or in the model, "
    "and see that the begin mark stands before the inputs"
)
ALREADY = (
    "shifted twice: labels are the next inputs already, and a model that shifts inside will shift them once more; give it "
    "labels=ids as they are"
)
NOWHERE = (
    "labels agree with inputs at no offset; see that both are of the same samples in the same order and of one vocabulary, "
    "and that no begin mark or padding stands in one of them only"
)
MOSTLY = (
    "most labels are the inputs that were meant; what differs may be inputs replaced by chance, or texts packed one behind "
    "another: where a label belongs to no input, make it -100"
)


def shift(
    inputs: Int[Tensor, "batch length"],
    labels: Int[Tensor, "batch length"],
    *,
    ignore: int | Sequence[int] = (-100, 0),
    shift: int = 1,
) -> Report:
    """Whether each label is the next input, wherever both are real: labels[:, t] = inputs[:, t + 1].

    Args:
        inputs: (B, T) ids that the model, or its decoder, reads.
        labels: (B, T) ids that it is to give at the same positions.
        ignore: ids that are not real, in either: padding, and labels that do not count.
        shift: how far ahead of its own position each label stands among the inputs; 0 for causal models of Hugging Face,
            which shift labels themselves.

    Returns:
        A report that names the first labels that are other ids, with the share of positions that agree at each offset.

    Raises:
        CheckError: the two are not ids of one shape, fewer than three positions are real in both, or ids repeat so that
            another offset fits as well.

    >>> import torch
    >>> ids = torch.tensor([[2, 7, 9, 8, 3]])
    >>> shift(ids[:, :-1], ids[:, 1:]).passed
    True
    >>> print(shift(ids, ids))
    shift: FAILED: labels[:, t] must be inputs[:, t + 1]
      labels[0, 0] is 2, and inputs[0, 1] is 7
      labels[0, 1] is 7, and inputs[0, 2] is 9
      labels[0, 2] is 9, and inputs[0, 3] is 8
      and 1 more: 4 of 4 positions disagree
      agree at offset -2 = 0
      agree at offset -1 = 0
      agree at offset 0 = 1
      agree at offset 1 = 0
      agree at offset 2 = 0
      advice: not shifted: each label is the input of its own position, so the model need only copy it; give \
inputs=ids[:, :-1] and labels=ids[:, 1:], or, to a causal model of Hugging Face, which shifts inside, both as they are, \
and check shift=0
      position 0 1 2 3 4
      inputs   2 7 9 8 3
      labels   2 7 9 8 3
               ! ! ! ! .
    """
    _check_ids(inputs, labels)
    unreal = torch.tensor([ignore] if isinstance(ignore, int) else list(ignore), dtype=torch.long)
    pairs = {offset: _pairs(inputs, labels, unreal, offset) for offset in sorted({*OFFSETS, shift})}
    real, agree = pairs[shift]
    count = int(real.sum())
    if count < FEWEST:
        raise CheckError(
            f"shift was given {count} positions where labels[:, t] and inputs[:, t + {shift}] are both real; give longer "
            f"sequences, {FEWEST} such positions at least"
        )
    shares = {
        offset: float(same.sum() / known.sum()) if known.any() else 0.0 for offset, (known, same) in pairs.items()
    }
    others = [offset for offset, (known, _) in pairs.items() if offset != shift and int(known.sum()) >= FEWEST]
    same_as = [offset for offset in others if shares[offset] == shares[shift] == 1.0]
    if same_as:
        raise CheckError(
            f"labels agree with inputs at offset {shift}, but at {', '.join(map(str, same_as))} as well, since ids repeat; "
            "give sequences in which neighbours differ"
        )
    asked = f"labels[:, t] must be inputs[:, t{f' {chr(43 if shift > 0 else 45)} {abs(shift)}' if shift else ''}]"
    figures: dict[str, float | int | str] = {f"agree at offset {offset}": share for offset, share in shares.items()}
    wrong = real & ~agree
    if not wrong.any():
        return Report("shift", asked, (), figures)
    findings = _told(inputs, labels, wrong, shift, count)
    return Report("shift", asked, findings, figures, _picture(inputs, labels, wrong), advice=_advice(shares, shift))


def _check_ids(inputs: Tensor, labels: Tensor) -> None:
    """Refuse what are no ids of one shape."""
    whole = not any(one.is_floating_point() or one.is_complex() or one.dtype == torch.bool for one in (inputs, labels))
    if not whole or inputs.dim() != 2 or inputs.shape != labels.shape:
        raise CheckError(
            f"shift was given inputs {inputs.dtype} {tuple(inputs.shape)} and labels {labels.dtype} {tuple(labels.shape)}; "
            "give whole numbers, (batch, length) both"
        )


def _pairs(
    inputs: Tensor, labels: Tensor, unreal: Tensor, offset: int
) -> tuple[Bool[Tensor, "batch length"], Bool[Tensor, "batch length"]]:
    """At which labels both the label and the input so far ahead of it are real, and at which they are also the same."""
    length = inputs.shape[1]
    there = torch.arange(length) + offset
    inside = (there >= 0) & (there < length)
    ahead = inputs[:, there.clamp(0, max(0, length - 1))].cpu() if length else inputs.cpu()
    own = labels.cpu()
    real = inside & ~torch.isin(own, unreal) & ~torch.isin(ahead, unreal)
    return real, real & (own == ahead)


def _told(inputs: Tensor, labels: Tensor, wrong: Tensor, offset: int, count: int) -> tuple[str, ...]:
    """A sentence for each of the first labels that are other ids, and how many there are."""
    places = wrong.nonzero().tolist()
    found = [
        f"labels[{sample}, {at}] is {int(labels[sample, at])}, and inputs[{sample}, {at + offset}] is "
        f"{int(inputs[sample, at + offset])}"
        for sample, at in places[:SHOWN]
    ]
    more = f"and {len(places) - SHOWN} more: " if len(places) > SHOWN else ""
    return (*found, f"{more}{len(places)} of {count} positions disagree")


def _advice(shares: dict[int, float], shift: int) -> str:
    """The likely slip: by the offset at which most labels agree."""
    best = max(shares, key=lambda offset: (shares[offset], -abs(offset - shift)))
    if shares[best] <= 0.5:
        return NOWHERE
    if best == shift:
        return MOSTLY
    if best == 1 and shift == 0:
        return ALREADY
    known = {0: UNSHIFTED, 2: TWICE, -1: BACKWARDS, -2: BACKWARDS}
    return known.get(best, f"labels agree with inputs at offset {best}; shift them by {shift}")


def _picture(inputs: Tensor, labels: Tensor, wrong: Tensor) -> str:
    """Inputs above labels, of the first sample in which they disagree, about the first place where they do."""
    sample, first = wrong.nonzero()[0].tolist()
    shown = slice(max(0, first - 2), max(0, first - 2) + DRAWN)
    places = range(*shown.indices(inputs.shape[1]))
    rows = [list(places), inputs[sample, shown].tolist(), labels[sample, shown].tolist()]
    marks = ["!" if one else "." for one in wrong[sample, shown].tolist()]
    wide = max(len(str(one)) for row in rows for one in row)
    names = ("position", "inputs", "labels", "")
    lines = [
        f"{name:<8} " + " ".join(f"{one:>{wide}}" for one in row)
        for name, row in zip(names, [*rows, marks], strict=True)
    ]
    return "\n".join(f"  {line}" for line in lines)

"""The likely slip behind what was found, and what to do about it, in one line."""

import re

import torch
from jaxtyping import Bool
from torch import Tensor

from pellucid.check.looked import Looked
from pellucid.check.where import Culprit

__all__ = ["BLIND_ROWS", "MORE_LAYERS", "OTHER_SAMPLE", "SLIPS", "of_batch", "of_padding", "of_sight"]

SLIPS = {
    "batch norm": "normalisation over time: {name} takes its statistics over all positions and samples while it trains; "
    "normalise each position over its own features, with LayerNorm(d_model)",
    "norm over positions": "normalisation over time: {name} takes its statistics over positions; normalise each position "
    "over its own features, with LayerNorm(d_model)",
    "pool over positions": "{name} takes a mean, a largest or a sum over all positions, which carries the future back; "
    "take it over the positions that may be seen, a running one say",
    "softmax over queries": "the softmax of {name} goes over queries; it must go over keys, the last axis (dim=-1)",
    "float mask of 0 and 1": "a float mask of 0 and 1 is added to the scores in {name}, which hides nothing; hand over a "
    "boolean mask, or one that is -inf where nothing may be seen",
    "convolution": "the convolution {name} looks ahead; pad (kernel_size - 1) * dilation on the left only",
    "pool of neighbours": "{name} takes a mean or a largest of neighbours on both sides; let it end at each position",
    "bidirectional": "{name} also runs from the end to the beginning; make it bidirectional=False",
}
"""What is said of each clue; {name} is the submodule."""

POLARITY = (
    "polarity: the mask is the wrong way round in {name}; True = blocked in nn.MultiheadAttention and nn.Transformer, "
    "True = may look in scaled_dot_product_attention, FlexAttention and Pellucid; give ~mask"
)
AHEAD = (
    "off by one: the mask of {name} is shifted, so that each query sees the next key, too; allow k <= q: "
    "torch.tril(ones), or block torch.triu(ones, diagonal=1)"
)
SHIFTED = (
    "off by one: {name} sees ahead, by the same number of positions everywhere; look there for a mask that is shifted, a "
    "roll, a shift to the left, or padding on both sides"
)
BEHIND = (
    "off by one: the mask of {name} is shifted, so that no query sees its own key; allow k <= q: torch.tril(ones), or "
    "block torch.triu(ones, diagonal=1)"
)
UNMASKED = (
    "mask not applied: {name} looks at every position; hand it the mask, and see that the mask hides something "
    "(booleans, or -inf; a float mask of 0 and 1 hides nothing)"
)
BLIND = (
    "off by one: some row of {name} has all its keys hidden, and -1e9 added to all of them leaves an even look at all; "
    "a mask of torch.tril(ones, diagonal=-1) does that, so allow k <= q: torch.tril(ones)"
)
ONE_LAYER = (
    "mask not applied in layer {layer}: the layers before it keep the promise, and {name} looks at every position; hand "
    "the mask to every layer"
)
OTHER_SAMPLE = (
    "batch axis: a sample has the mask of another; see that masks and samples stand in the same order, and that one mask "
    "is not used for all of them"
)
TRANSPOSED = (
    "queries and keys are exchanged in the mask of {name}; its rows are queries and its columns keys: hand over mask.mT"
)
MORE_LAYERS = "several layers see through each other; say how many: layers={layers}"
INSIDE = "; a function cannot be looked into, so give the module itself to be told where"
BLIND_ROWS = (
    "a row that sees nothing gives no number: let it see something, or give zeros for it; a mask of -1e9 that is added "
    "twice, or in float16, is -inf too"
)
RECURRENT = frozenset({"RNN", "GRU", "LSTM"})
LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


def of_sight(looked: Looked, culprit: Culprit | None) -> str:
    """What to do about outputs that see what they must not, or do not see what they should.

    Args:
        looked: what they see: those of the culprit, where it is known.
        culprit: the first submodule that breaks the promise.
    """
    name = culprit.name or "the module" if culprit else "the module"
    said = _shape(looked)
    clues = culprit.clues if culprit else ()
    for clue in clues:
        if clue in SLIPS and not (clue == "pool over positions" and said in (POLARITY, AHEAD)):
            return SLIPS[clue].format(name=name)
    if said == AHEAD and culprit and culprit.name and "attention" not in clues:
        said = SHIFTED
    if said:
        return said.format(name=name)
    if not looked.leaks.any():
        return (
            f"the module sees less than it should; see that {name} is not given a mask that hides more than was meant"
        )
    everything = bool((looked.found | ~looked.leaks.any(dim=1)[:, None]).all())
    if everything and "attention" in clues:
        layer = LAYER.search(culprit.name) if culprit else None
        return ONE_LAYER.format(layer=layer[1], name=name) if layer and int(layer[1]) else UNMASKED.format(name=name)
    return (
        f"{name} mixes positions: look there for a mask that is not applied, a norm, a mean or a largest over time, a "
        "roll, a flip or a shift to the left" + ("" if culprit else INSIDE)
    )


def _shape(looked: Looked) -> str:
    """The slip that what is seen looks like by itself, or nothing."""
    found, allowed = looked.found, looked.allowed
    place, inputs = torch.tensor(looked.rows)[:, None], torch.arange(found.shape[1])[None]
    others = inputs != place  # a residual path shows each position to itself, whatever the mask
    leaks, causal = looked.leaks & others, allowed == (inputs <= place)
    # A row of which -1e9 hides all keys looks at all of them evenly; where all rows see everything, no mask is there.
    blind = (found | ~others).all(dim=1)
    blind &= ~blind.all()
    clear = ~blind[:, None] & others
    wrong, right = ~allowed & clear, allowed & clear
    if (leaks & clear).any() and right.any() and not (found & right).any() and bool((found >= wrong).all()):
        return POLARITY
    if leaks.any() and found.shape[0] == found.shape[1] and torch.equal(found | ~others, allowed.mT | ~others):
        return TRANSPOSED
    if not bool(causal.all()):
        return ""
    reach = int(torch.where(leaks, inputs - place, 0).max())
    even = torch.equal(leaks, (inputs > place) & (inputs <= place + reach))
    if 0 < reach <= max(1, found.shape[1] // 3) and even:
        return AHEAD
    own = (~others & ~found).any(dim=1) | blind
    if own.all() and not (leaks & clear).any() and not (looked.missing & others).any():
        return BEHIND
    return BLIND if (blind & leaks.any(dim=1)).any() and not (leaks & clear).any() else ""


def of_padding(
    seen: Bool[Tensor, "samples inputs"] | None, lengths: list[int], heeded: bool, culprit: Culprit | None
) -> str:
    """What to do about padding that is seen.

    Args:
        seen: the positions of each sample whose content moves its real outputs, past the end of x, too; None where only
            the amount of padding counts, or where that is not known.
        lengths: the real positions of each sample.
        heeded: whether it makes a difference which lengths the module is told.
        culprit: the first submodule that breaks the promise, where it is known.
    """
    name = culprit.name or "the module" if culprit else "the module"
    clues = culprit.clues if culprit else ()
    for clue in (
        "batch norm",
        "norm over positions",
        "pool over positions",
        "float mask of 0 and 1",
        "softmax over queries",
    ):
        if clue in clues:
            return f"{SLIPS[clue].format(name=name)}; padding must be left out of it"
    if "convolution" in clues or (culprit and culprit.kind in RECURRENT):
        return f"{name} carries padding to real positions; set it to zero before {name}, or pack sequences by their lengths"
    if not heeded:
        return f"padding ignored: {name} takes no notice of the lengths; hide padded keys from every query there"
    if seen is None:
        return (
            "the amount of padding counts: look for a mean, a norm or a position that is taken by the tensor's length, and "
            "take it by the real length"
        )
    at = torch.arange(seen.shape[1])[None]
    real, longest = at < torch.tensor(lengths)[:, None], at < max(lengths)
    padded = (seen & ~real).any(dim=1)
    if padded.any() and not (seen & real)[padded].any():
        return POLARITY.format(name=name)
    if padded.any() and not (seen & ~longest).any() and seen.shape[1] > max(lengths):
        return (
            f"heads repeated the wrong way: {name} masks a sample by another's lengths; row b * num_heads + h of a 3-D "
            "mask is sample b, head h: mask.repeat_interleave(num_heads, dim=0), not mask.repeat(num_heads, 1, 1)"
        )
    return (
        f"padding is hidden in the wrong place: {name} uses the lengths, and real positions still see padded ones; mask "
        "keys (the last axis of the scores), not queries, and in cross-attention too"
    )


def of_batch(culprit: Culprit | None, positions_mix: bool | None) -> str:
    """What to do about samples that touch."""
    name = culprit.name or "the module" if culprit else "the module"
    clues = culprit.clues if culprit else ()
    if "batch norm" in clues:
        return (
            f"{name} takes its statistics over the batch while it trains; normalise each position over its own features, "
            "with LayerNorm(d_model)"
        )
    if positions_mix is False or "attention" in clues:
        return (
            f"batch axis: {name} takes samples for positions; make it batch_first=True, or give (length, batch, width)"
        )
    return (
        f"{name} mixes samples: look there for a statistic or a softmax over the batch axis, a reshape that moves samples "
        "into other axes, or a mask of one sample used for all"
    )

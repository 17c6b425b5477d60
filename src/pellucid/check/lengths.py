"""How a module is told which positions are real: by the names that its arguments have, whoever wrote it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pellucid.check.calling import Call, arguments_of, title, usual_call
from pellucid.errors import CheckError

__all__ = ["LENGTHS", "Told", "fitting", "numbers_of", "telling"]

Told = Int[Tensor, " _samples"] | Sequence[int] | None
"""Lengths of some samples of one input; None where it has no padding."""

LENGTHS = (
    ("lengths", "source_lengths", "src_lengths", "input_lengths"),
    ("target_lengths", "tgt_lengths", "output_lengths"),
)
"""Arguments by which modules are known to take the lengths of their first input and of their second."""

BLOCKED = {
    "src": ("src_key_padding_mask", "memory_key_padding_mask"),
    "tgt": ("tgt_key_padding_mask",),
    "memory": ("memory_key_padding_mask",),
    "query": ("key_padding_mask",),
}
"""torch's masks, True = padding, for the input of each name; in nn.Transformer the decoder must be told of `src`, too."""

KEPT = ("attention_mask", "decoder_attention_mask")
"""Hugging Face's masks, 1 = real, for the first input and the second."""


def telling(module: Any, told: Sequence[Told]) -> Call:
    """A call as call(module, *inputs, *lengths of each), which tells the lengths by the arguments the module has for them.

    Raises:
        CheckError: the module has no argument that is known to take the lengths of an input that has some.
    """
    names = arguments_of(module)
    ways = [None if side is None else _way(module, names, place, len(told)) for place, side in enumerate(told)]

    def call(module: Any, *given: Any) -> Any:
        inputs, lengths = given[: len(told)], given[len(told) :]
        named: dict[str, Any] = {}
        for way, value, side in zip(ways, inputs, lengths, strict=False):
            if way is not None:
                named |= way(value, side)
        return usual_call(module, inputs, named)

    return call


def _way(module: Any, names: list[str], place: int, inputs: int) -> Callable[[Tensor, Told], dict[str, Any]]:
    """What tells a module the lengths of one input: a function of the input and its lengths."""
    known = LENGTHS[place] if place < len(LENGTHS) else ()
    for name in known:
        if name in names:
            return lambda _, side: {name: side}
    own = names[place] if place < len(names) else ""
    blocked = [name for name in BLOCKED.get(own, ()) if name in names]
    if blocked:
        return lambda value, side: dict.fromkeys(blocked, ~_real(value, side))
    if place < len(KEPT) and KEPT[place] in names:
        return lambda value, side: {KEPT[place]: _real(value, side).long()}
    tried = ", ".join([*known, *BLOCKED.get(own, ()), *KEPT[place : place + 1]])
    raise CheckError(
        f"{title(module)} has no argument for the lengths of input {place}, known as {tried or 'nothing'}; give "
        + ("call=lambda module, x, lengths: ... that tells it the lengths" if inputs == 1 else
           "call=lambda module, ... that takes all inputs and then the lengths of each")
    )  # fmt: skip


def _real(value: Tensor, lengths: Told) -> Bool[Tensor, "samples positions"]:
    """Which positions of an input, batch first, are real."""
    ends = torch.as_tensor(lengths, device=value.device)
    return torch.arange(value.shape[1], device=value.device)[None] < ends[:, None]


def numbers_of(lengths: Any) -> list[int]:
    """Lengths as plain numbers."""
    return [int(length) for length in lengths]


def fitting(value: Tensor, lengths: Any) -> list[int]:
    """The lengths of an input as numbers, where they fit it.

    Raises:
        CheckError: they do not.
    """
    if any(int(length) != length for length in lengths):
        raise CheckError(f"lengths {tuple(lengths)} were given; give whole numbers")
    numbers = numbers_of(lengths)
    longest = value.shape[1] if value.dim() > 1 else 0
    if len(numbers) != len(value) or not numbers or min(numbers) < 0 or max(numbers) > longest:
        raise CheckError(
            f"lengths {numbers} do not fit an input of shape {tuple(value.shape)}; give one for each sample"
        )
    return numbers

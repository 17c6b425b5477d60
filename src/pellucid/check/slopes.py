"""Gradients of many numbers at once, by an input or by what token ids are embedded as."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.check.held import modules_of
from pellucid.check.ways import Probe

__all__ = ["leaves_of", "slopes"]

TOGETHER = 32
"""Backward passes made at once."""


def slopes(asked: Float[Tensor, " asked"], leaves: list[Tensor]) -> list[Tensor] | None:
    """The gradients of several numbers by each leaf, (asked, *leaf); None where none of them depends on a leaf."""
    parts = torch.split(torch.eye(len(asked), dtype=asked.dtype, device=asked.device), TOGETHER)
    found = [_together(asked, leaves, part) for part in parts]
    if all(slope is None for some in found for slope in some):
        return None
    return [
        torch.cat([
            leaf.new_zeros(len(part), *leaf.shape) if slope is None else slope
            for part, slope in zip(parts, each, strict=True)
        ])
        for leaf, each in zip(leaves, zip(*found, strict=True), strict=True)
    ]  # fmt: skip


def _together(asked: Tensor, leaves: list[Tensor], part: Tensor) -> Sequence[Tensor | None]:
    """Backward passes made at once, or one by one through steps that torch cannot make at once."""
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    try:
        with warnings.catch_warnings():  # a step without a batching rule is only slow
            warnings.simplefilter("ignore")
            found: Sequence[Tensor | None] = torch.autograd.grad(asked, leaves, part, is_grads_batched=True, **options)
            return found
    except RuntimeError:
        each = [_alone(asked, leaves, row) for row in part]
        return [
            None if all(one is None for one in slopes)
            else torch.stack([torch.zeros_like(leaf) if one is None else one for one in slopes])
            for leaf, slopes in zip(leaves, zip(*each, strict=True), strict=True)
        ]  # fmt: skip


def _alone(asked: Tensor, leaves: list[Tensor], row: Tensor) -> Sequence[Tensor | None]:
    """One backward pass, or none where a module has none: what was needed for it was changed in place, say."""
    try:
        found: Sequence[Tensor | None] = torch.autograd.grad(asked, leaves, row, retain_graph=True, allow_unused=True)
    except RuntimeError:
        return [None] * len(leaves)
    return found


@contextmanager
def leaves_of(probe: Probe, of: int) -> Iterator[tuple[list[Any], list[Tensor]]]:
    """Inputs to call with, and a list that holds what gradients are taken by: the input, or its embeddings once called."""
    inputs, x = list(probe.inputs), probe.inputs[of]
    if x.is_floating_point():
        inputs[of] = x.clone().requires_grad_()
        yield inputs, [inputs[of]]
        return
    twins = sum(isinstance(one, Tensor) and one.shape == x.shape and torch.equal(one, x) for one in inputs) > 1
    leaves: list[Tensor] = []  # grows in the call

    def embed(_: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor | None:
        ids = given[0] if given else None
        if not isinstance(ids, Tensor) or ids.shape != x.shape or output.shape[: x.dim()] != x.shape:
            return None  # a table of positions, say, that asks ids for their number alone
        if ids.data_ptr() != x.data_ptr() and (twins or not torch.equal(ids, x)):
            return None
        leaves.append(output.detach().clone().requires_grad_())
        return leaves[-1]

    parts = [part for module in modules_of(probe.module) for part in module.modules()]
    hooks = [part.register_forward_hook(embed) for part in dict.fromkeys(parts) if isinstance(part, nn.Embedding)]
    try:
        yield inputs, leaves
    finally:
        for hook in hooks:
            hook.remove()

"""What a module does while it runs that people do by mistake: seen in its calls of torch, submodule by submodule."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

__all__ = ["Clue", "Witness", "clue_of"]

Clue = str
"""A slip that was seen: one of the keys of `advice.SLIPS`."""

SOFTMAXES = frozenset({F.softmax, torch.softmax, Tensor.softmax, F.log_softmax})
POOLS = frozenset({
    torch.mean, Tensor.mean, torch.sum, Tensor.sum, torch.amax, Tensor.amax, torch.max, Tensor.max, torch.std, Tensor.std,
    torch.var, Tensor.var, torch.logsumexp, Tensor.logsumexp, torch.norm, Tensor.norm,
    F.adaptive_avg_pool1d, F.adaptive_max_pool1d,
})  # fmt: skip
SUMS = frozenset({torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__})
MASKED = {F.scaled_dot_product_attention: "attn_mask", F.multi_head_attention_forward: "attn_mask"}


@dataclass
class Witness(TorchFunctionMode):
    """Notes clues in calls of torch that speak of a given number of positions, beside the submodule that made them.

    Attributes:
        length: positions of the input that is asked about.
        clues: (name of the submodule, clue) in the order in which they were seen.
    """

    length: int
    clues: list[tuple[str, Clue]] = field(default_factory=list)
    inside: list[str] = field(default_factory=lambda: [""])

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, and note what is odd about the call."""
        named = dict(kwargs or {})
        for clue in self._odd(func, args, named):
            self.clues.append((self.inside[-1], clue))
        return func(*args, **named)

    def _odd(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Iterator[Clue]:
        tensors = [value for value in args if isinstance(value, Tensor)]
        if func in SOFTMAXES and tensors and self._over_queries(tensors[0], args, named):
            yield "softmax over queries"
        if func in SUMS and any(self._zeros_and_ones(value) for value in tensors):
            yield "float mask of 0 and 1"
        if func in MASKED:
            mask = named.get("attn_mask", args[3] if func is F.scaled_dot_product_attention and len(args) > 3 else None)
            if isinstance(mask, Tensor) and self._zeros_and_ones(mask):
                yield "float mask of 0 and 1"
        if func in POOLS and tensors and self._over_positions(tensors[0], args, named):
            yield "pool over positions"
        if func is F.layer_norm and self._norm_over_positions(args, named):
            yield "norm over positions"

    def _zeros_and_ones(self, value: Tensor) -> bool:
        """Whether a float tensor of queries and keys holds zeros and ones only, and both."""
        if not value.is_floating_point() or value.dim() < 2 or value.shape[-1] != self.length:
            return False
        ones = value == 1
        return bool((ones | (value == 0)).all() and ones.any() and not ones.all())

    def _over_queries(self, scores: Tensor, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
        dim = named.get("dim", args[1] if len(args) > 1 else None)
        square = scores.dim() >= 3 and scores.shape[-1] == self.length == scores.shape[-2]
        return square and isinstance(dim, int) and dim % scores.dim() == scores.dim() - 2

    def _over_positions(self, value: Tensor, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Whether a pool goes over an axis of positions, or over all there are."""
        dims = named.get("dim", args[1] if len(args) > 1 else None)
        if dims is None:
            return value.dim() > 1 and self.length in value.shape
        dims = (dims,) if isinstance(dims, int) else dims
        last = value.dim() - 1
        return isinstance(dims, tuple | list) and any(
            isinstance(dim, int) and dim % value.dim() != last and value.shape[dim] == self.length for dim in dims
        )

    def _norm_over_positions(self, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
        shape = tuple(named.get("normalized_shape", args[1] if len(args) > 1 else ()))
        return self.length in shape and (len(shape) > 1 or args[0].shape[-2:-1] != shape)

    @contextmanager
    def watching(self, module: nn.Module) -> Iterator["Witness"]:
        """Watch a module while it runs, so that each call is known to be a submodule's."""
        hooks = []
        for name, part in module.named_modules():
            hooks.append(part.register_forward_pre_hook(self._entering(name)))
            hooks.append(part.register_forward_hook(self._leaving(), always_call=True))
        try:
            with self:
                yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        return lambda *_: self.inside.append(name)

    def _leaving(self) -> Callable[..., None]:
        def leave(*_: Any) -> None:
            self.inside.pop()

        return leave


def clue_of(part: nn.Module) -> Clue:
    """The slip that a submodule's own kind speaks of, or nothing."""
    if isinstance(part, _BatchNorm):
        return "batch norm"
    if isinstance(part, nn.GroupNorm | nn.modules.instancenorm._InstanceNorm):
        return "norm over positions"
    if isinstance(part, nn.LayerNorm):
        return "norm over positions"
    if isinstance(part, nn.Conv1d | nn.Conv2d):
        return "convolution"
    if isinstance(part, nn.AvgPool1d | nn.MaxPool1d | nn.AvgPool2d | nn.MaxPool2d):
        return "pool of neighbours"
    if isinstance(part, nn.RNNBase) and part.bidirectional:
        return "bidirectional"
    if isinstance(part, nn.modules.pooling._AdaptiveAvgPoolNd | nn.modules.pooling._AdaptiveMaxPoolNd):
        return "pool over positions"
    name = type(part).__name__.lower()
    return "attention" if "attn" in name or "attention" in name else ""

"""Where a gradient stops being a number: the step of the backward pass that makes it so, and its submodule."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.check.calling import title

__all__ = ["Fault", "Owners", "first_fault", "tensors_of"]

ROOT_OF_ZERO = (
    "the root of 0 has an infinite slope, which torch.where around it does not hide: add an eps under the root, as in "
    "(x.square().sum(-1) + eps).sqrt()"
)
SLIPS = {
    "softmax": "a softmax over nothing but -inf gives NaN: let each query see a key at least, or zero such rows afterwards",
    "scaleddotproduct": "a query whose keys are all hidden gives NaN: let each query see a key at least, or zero such rows",
    "sqrt": ROOT_OF_ZERO,
    "rsqrt": ROOT_OF_ZERO,
    "norm": ROOT_OF_ZERO,
    "std": ROOT_OF_ZERO,
    "pow": ROOT_OF_ZERO,
    "div": "a division by 0, a mean over no position say: clamp the divisor, as in / count.clamp_min(1)",
    "reciprocal": "a division by 0, a mean over no position say: clamp the divisor, as in / count.clamp_min(1)",
    "log": "the log of 0 is infinite: take log_softmax of the scores, or clamp what the log is taken of",
    "exp": "an exp beyond the largest number: subtract the largest score first, as softmax does",
}
"""What is said of a step of the backward pass, by a part of its name; the first that fits."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A step that makes infinity or NaN of finite numbers.

    Attributes:
        step: its name, as in SqrtBackward0.
        where: the submodule, as a path and a class; nothing for a function.
    """

    step: str
    where: str

    @property
    def advice(self) -> str:
        """The likely slip."""
        name = self.step.lower()
        said = next((said for part, said in SLIPS.items() if part in name), "")
        return (
            said
            or f"the backward pass of {self.step.removesuffix('0').removesuffix('Backward')} makes it of finite numbers"
        )


@dataclass
class Owners:
    """Which submodule made each step of a graph, noted while a module runs."""

    module: Any
    names: dict[Any, str] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    inside: list[str] = field(default_factory=lambda: [""])

    @contextmanager
    def watching(self) -> Iterator["Owners"]:
        """Watch the module run; a function has no submodules to tell apart."""
        hooks: list[Any] = []
        for name, part in self.module.named_modules() if isinstance(self.module, nn.Module) else ():
            hooks.append(part.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True))
            hooks.append(part.register_forward_hook(partial(self._leave, name)))
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, name: str, _: nn.Module, args: Any, named: Any) -> None:
        self.claim((args, named), self.inside[-1])
        self.called.add(name)
        self.inside.append(name)

    def _leave(self, name: str, _: nn.Module, __: Any, output: Any) -> None:
        self.claim(output, name)
        self.inside.pop()

    def claim(self, value: Any, name: str) -> None:
        """Steps that led to these tensors, and that nobody has made yet, are this submodule's."""
        steps: list[Any] = [tensor.grad_fn for tensor in tensors_of(value) if tensor.grad_fn is not None]
        while steps:
            step = steps.pop()
            if step is not None and step not in self.names:
                self.names[step] = name
                steps += [before for before, _ in step.next_functions]


def first_fault(output: Tensor, owners: Owners) -> Fault | None:
    """The first step of the backward pass from a scalar that makes infinity or NaN of finite numbers.

    The graph is kept.
    """
    owners.claim(output, "")
    found: list[Any] = []

    hooks = [step.register_hook(partial(_look, found, step)) for step in owners.names]
    leaves = [step.variable for step in owners.names if hasattr(step, "variable")]
    try:
        torch.autograd.grad(output, leaves, retain_graph=True, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        return None
    name, module = owners.names[found[0]], owners.module
    place = (
        f"{name or 'the module itself'} ({title(module.get_submodule(name))})" if isinstance(module, nn.Module) else ""
    )
    return Fault(found[0].name().rpartition("::")[2], place)


def _look(found: list[Any], step: Any, after: Any, before: Any) -> None:
    """Note a step that makes infinity or NaN of finite numbers."""
    if _finite(before) and not _finite(after):
        found.append(step)


def tensors_of(value: Any) -> list[Tensor]:
    """The float tensors in what a module is given or hands back, in order."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        return [tensor for one in value.values() for tensor in tensors_of(one)]
    if isinstance(value, tuple | list):
        return [tensor for one in value for tensor in tensors_of(one)]
    return []


def _finite(gradients: Any) -> bool:
    return all(one is None or bool(one.isfinite().all()) for one in gradients)

"""Copies of what is checked, in evaluation mode and float64, so that the original stays as it was."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.errors import CheckError

__all__ = ["Call", "double", "matching", "plain_call", "seen"]

Call = Callable[..., Any]
"""How a module is called: call(module, *inputs) -> output."""


def seen(module: Any) -> Any:
    """The thing to probe: a float64 copy of a module in evaluation mode, or a function as it is.

    Raises:
        CheckError: the module cannot be copied.
    """
    if not isinstance(module, nn.Module):
        return module
    try:
        copied = copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        raise CheckError(
            f"{type(module).__name__} cannot be copied ({error}); wrap it in a function to check it"
        ) from None
    return copied.double().eval().requires_grad_(requires_grad=False)


def double(value: Any) -> Any:
    """A float64 copy of a float tensor, and anything else as it is."""
    return value.detach().double() if isinstance(value, Tensor) and value.is_floating_point() else value


def matching(value: Any, module: Any) -> Any:
    """An input for what `seen` gives of a module: a float tensor as float64; as it is for a function.

    A function may close over modules of its own, which no copy can reach; so it is called with what it was meant for.
    """
    if isinstance(module, nn.Module) or not isinstance(value, Tensor):
        return double(value)
    return value.detach().clone()


def plain_call(call: Call | None) -> Callable[..., Tensor]:
    """A call whose output is one tensor: the first of several, detached from nothing."""

    def called(module: Any, *inputs: Any) -> Tensor:
        output = module(*inputs) if call is None else call(module, *inputs)
        if isinstance(output, tuple | list):
            output = output[0]
        if not isinstance(output, Tensor):
            raise CheckError(f"the module gave a {type(output).__name__}, not a tensor; give call= that hands back one")
        return output

    return torch.enable_grad()(called)

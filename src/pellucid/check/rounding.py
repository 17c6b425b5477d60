"""How coarsely a module rounds while it runs: a softmax in float32, say, inside a module in float64."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["Rounding"]


class Rounding(TorchFunctionMode):
    """Notes the coarsest rounding of what is made, in a call of torch, from more precise numbers.

    Attributes:
        eps: that rounding of 1; 0 where nothing was made coarser than what it was made from.
    """

    def __init__(self) -> None:
        super().__init__()
        self.eps = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, and compare the precision of what it gives with that of what it was given."""
        made = func(*args, **(kwargs or {}))
        finest = min((_eps(one) for one in args if _is_float(one)), default=1.0)
        for one in made if isinstance(made, tuple | list) else (made,):
            if _is_float(one) and _eps(one) > finest:
                self.eps = max(self.eps, _eps(one))
        return made


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _eps(value: Tensor) -> float:
    return torch.finfo(value.dtype).eps

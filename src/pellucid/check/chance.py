"""What chance decides while a module is checked: nothing that is asked about, and the same each time."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import nn
from torch.overrides import TorchFunctionMode

__all__ = ["DropoutOff", "fixed"]

DROPOUTS = frozenset({
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout,
    torch.dropout_, torch.native_dropout,
})  # fmt: skip
"""Functions of torch whose first argument is handed through where dropout is off."""

WITH_DROPOUT = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}
"""Functions with a `dropout_p` among other things, and its place among the arguments."""


@contextmanager
def fixed(seed: int) -> Iterator[None]:
    """Random numbers begin at a seed, and afterwards go on as though none had been drawn."""
    state, numpy_state = random.getstate(), numpy.random.get_state()
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(range(torch.cuda.device_count()) if used else ()):
        torch.default_generator.manual_seed(seed)  # manual_seed would queue a seed for each device that is never used
        if used:
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)
            numpy.random.set_state(numpy_state)


class DropoutOff(TorchFunctionMode):
    """Dropout changes nothing, though all else is in training: it is no part of what checks ask about.

    Submodules whose class is called a dropout are put in evaluation mode, torch's functions hand their input through.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        if isinstance(module, nn.Module):
            for part in module.modules():
                part.training = part.training and "dropout" not in type(part).__name__.lower()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, without its dropout."""
        kwargs = dict(kwargs or {})
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        place = WITH_DROPOUT.get(func)
        if place is not None:
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            elif "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)

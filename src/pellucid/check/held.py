"""What a function holds: modules that it closes over, whose buffers and modes a check must leave as they were."""

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch import nn

__all__ = ["kept_as_they_were", "modules_of"]

DEPTH = 3  # functions within functions that are looked into


def modules_of(thing: Any, depth: int = DEPTH) -> list[nn.Module]:
    """A module itself, or the modules that something holds: a function in its closure and globals, a list, an object."""
    if isinstance(thing, nn.Module):
        return [thing]
    if depth == 0 or isinstance(thing, type | ModuleType):
        return []
    return list(dict.fromkeys(module for one in _held(thing) for module in modules_of(one, depth - 1)))


def _held(thing: Any) -> list[Any]:
    """What something holds that may be, or hold, a module."""
    if isinstance(thing, Mapping):
        return list(thing.values())
    if isinstance(thing, list | tuple | set):
        return list(thing)
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if inspect.ismethod(thing):
        return [thing.__self__, thing.__func__]
    if inspect.isfunction(thing):
        names = [name for name in thing.__code__.co_names if name in thing.__globals__]
        return [
            *(cell.cell_contents for cell in thing.__closure__ or () if _filled(cell)),
            *(thing.__globals__[name] for name in names),
            *(thing.__defaults__ or ()),
            *(thing.__kwdefaults__ or {}).values(),
        ]
    return list(vars(thing).values()) if callable(thing) and hasattr(thing, "__dict__") else []


def _filled(cell: Any) -> bool:
    """Whether a variable of a closure has been given a value yet."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


@contextmanager
def kept_as_they_were(thing: Any) -> Iterator[None]:
    """Put back the buffers and modes of what is called, whatever the call does to them."""
    parts = list(dict.fromkeys(part for module in modules_of(thing) for part in module.modules()))
    modes = [(part, part.training) for part in parts]
    buffers = [(part, name, buffer) for part in parts for name, buffer in part._buffers.items() if buffer is not None]
    for part, name, buffer in buffers:  # the call has copies, so gradients still find what they need afterwards
        part._buffers[name] = buffer.detach().clone()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
        for part, name, buffer in buffers:
            part._buffers[name] = buffer

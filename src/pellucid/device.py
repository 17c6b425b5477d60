"""The device that computes: found by its name, and held to the memory that it has."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pellucid.errors import ConfigError, DeviceError

__all__ = ["in_memory", "pick_device"]


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" is the GPU where there is one, else the CPU.

    Raises:
        ConfigError: this machine has no such device.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "cuda":  # asked of the driver: a tensor would take memory of the first GPU in every process
            usable = torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
        else:
            usable = not torch.empty(0, device=device).is_meta  # "meta" holds shapes, and no numbers
    except (RuntimeError, AssertionError):
        usable = False
    if not usable:
        raise ConfigError(f"the device '{name}' is not on this machine; take 'cpu' or 'auto'")
    return device


@contextmanager
def in_memory(job: str, remedy: str) -> Iterator[None]:
    """While it lasts, say in one sentence that a device has too little memory, and what to do.

    Args:
        job: what needs the memory, as in "training".
        remedy: what to do, as in "lower data.batch_tokens".

    Raises:
        DeviceError: torch could not have the memory that it asked for.
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one, and a CPU's has no type of its own
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise DeviceError(f"{job} needs more memory than this device has free; {remedy}") from None

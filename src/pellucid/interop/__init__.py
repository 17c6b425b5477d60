"""Other people's weights, one file for each of their sources."""

from pellucid.interop.torch import from_torch, to_torch

__all__ = ["from_torch", "to_torch"]

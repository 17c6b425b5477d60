"""Keys and values that a decoder has already computed: passed in, handed back longer, never changed in place."""

from dataclasses import dataclass

import torch

from pellucid.shapes import Heads, Rows

__all__ = ["Cache", "KeysValues", "LayerCache"]


@dataclass(frozen=True, slots=True)
class KeysValues:
    """The projected keys and values of one attention, split into heads."""

    key: Heads
    value: Heads

    def append(self, newer: "KeysValues") -> "KeysValues":
        """These followed by newer ones, along the positions."""
        return KeysValues(torch.cat([self.key, newer.key], dim=2), torch.cat([self.value, newer.value], dim=2))

    def select(self, rows: Rows) -> "KeysValues":
        """Those of the given samples, in the given order; a sample may be named several times."""
        return KeysValues(self.key.index_select(0, rows), self.value.index_select(0, rows))


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one decoder layer keeps: its own past, which grows, and the source's, which does not."""

    own: KeysValues
    cross: KeysValues


@dataclass(frozen=True, slots=True)
class Cache:
    """What a decoder keeps from step to step, a `LayerCache` for each layer."""

    layers: tuple[LayerCache, ...]

    @property
    def length(self) -> int:
        """Target positions already seen, which is the absolute position of the next one."""
        return self.layers[0].own.key.shape[2]

    @property
    def batch(self) -> int:
        """Samples that it was made for."""
        return len(self.layers[0].own.key)

    def select(self, rows: Rows) -> "Cache":
        """The cache of the given samples in the given order, as a beam search reorders them."""
        return Cache(tuple(LayerCache(layer.own.select(rows), layer.cross.select(rows)) for layer in self.layers))

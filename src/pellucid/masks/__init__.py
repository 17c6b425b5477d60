"""Masks as values: what each query may look at, True = may look."""

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions import read
from pellucid.masks.kinds import Causal, Chunked, Dilated, Full, Global, Window
from pellucid.masks.samples import Heads, Padding, Prefix, Segments
from pellucid.masks.seq2seq import Seq2SeqMasks, seq2seq
from pellucid.masks.tensors import Dense, Predicate

__all__ = [
    "Causal",
    "Chunked",
    "Dense",
    "Dilated",
    "Full",
    "Global",
    "Heads",
    "Mask",
    "MaskError",
    "Padding",
    "Predicate",
    "Prefix",
    "Segments",
    "Seq2SeqMasks",
    "Window",
    "read",
    "seq2seq",
]

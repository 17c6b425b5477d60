"""Masks as values: what each query may look at, True = may look."""

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.conventions import BlindRows, read
from pellucid.masks.difference import Difference, difference
from pellucid.masks.kinds import Causal, Chunked, Dilated, Full, Global, Window
from pellucid.masks.parse import parse
from pellucid.masks.recognise import recognise
from pellucid.masks.samples import Heads, Padding, Prefix, Segments
from pellucid.masks.seq2seq import Seq2SeqMasks, seq2seq
from pellucid.masks.tensors import Dense, Predicate

__all__ = [
    "BlindRows",
    "Causal",
    "Chunked",
    "Dense",
    "Difference",
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
    "difference",
    "parse",
    "read",
    "recognise",
    "seq2seq",
]

"""Masks as values: what each query may look at, True = may look."""

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.kinds import Causal, Full, Padding, Window
from pellucid.masks.seq2seq import Seq2SeqMasks, seq2seq

__all__ = ["Causal", "Full", "Mask", "MaskError", "Padding", "Seq2SeqMasks", "Window", "seq2seq"]

"""The three masks of an encoder-decoder, made from the lengths of a batch and nothing else."""

from dataclasses import dataclass

from pellucid.errors import MaskError
from pellucid.masks.algebra import Mask
from pellucid.masks.kinds import Causal, Full
from pellucid.masks.samples import Padding
from pellucid.shapes import Lengths

__all__ = ["Seq2SeqMasks", "seq2seq"]


@dataclass(frozen=True, slots=True)
class Seq2SeqMasks:
    """What each of the three attentions may see (Vaswani et al. 2017, section 3.2.3).

    Attributes:
        encoder: source positions looking at source positions.
        decoder: target positions looking at target positions, never ahead.
        cross: target positions looking at source positions.
    """

    encoder: Mask
    decoder: Mask
    cross: Mask


def seq2seq(source_lengths: Lengths | None = None, target_lengths: Lengths | None = None) -> Seq2SeqMasks:
    """The masks of a batch; lengths left out mean that nothing on that side is padding.

    The same triple serves a cached decoding step: the step at position t is row t of `decoder`.

    Raises:
        MaskError: lengths are not whole numbers from 0 up, or there are not as many sources as targets.

    >>> triple = seq2seq(source_lengths=(5, 3), target_lengths=(4, 4))
    >>> triple.decoder, triple.cross
    (Causal() & Padding((4, 4)), Padding((5, 3)))
    """
    source = Full() if source_lengths is None else Padding(source_lengths)
    target = Full() if target_lengths is None else Padding(target_lengths)
    if None not in (source.batch, target.batch) and source.batch != target.batch:
        raise MaskError(
            f"seq2seq was given {source.batch} source lengths and {target.batch} target lengths; give one for each "
            "sentence of the batch"
        )
    return Seq2SeqMasks(encoder=source, decoder=Causal() & target, cross=source)

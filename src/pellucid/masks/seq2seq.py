"""The three masks of an encoder-decoder, made from the lengths of a batch and nothing else."""

from dataclasses import dataclass
from typing import Any

import torch

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

    def to(
        self,
        convention: str,
        *,
        source: int,
        target: int,
        batch: int | None = None,
        heads: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        blind: str = "warn",
    ) -> dict[str, Any]:
        """The three masks as keyword arguments for somebody else's encoder-decoder.

        Args:
            convention: "transformer", for `torch.nn.Transformer.forward`.
            source: source positions, S.
            target: target positions, T.
            batch: samples, where the library must be told and no mask tells.
            heads: heads, likewise.
            dtype: a float type for additive masks; None gives bool.
            device: where tensors are made.
            blind: what to do where a row sees nothing, as in `Mask.to`.

        Returns:
            All nine arguments, None or False where there is nothing to hide: `src_mask` (S, S), `tgt_mask` (T, T),
            `memory_mask` (T, S), each also as (batch * heads, ...) where samples or heads differ;
            `src_key_padding_mask` (batch, S), `tgt_key_padding_mask` (batch, T), `memory_key_padding_mask` (batch, S);
            `src_is_causal`, `tgt_is_causal`, `memory_is_causal`.

        Raises:
            MaskError: the library has no such masks, or a row is blind and `blind` is "refuse".

        >>> nine = seq2seq(source_lengths=(5, 3)).to("transformer", source=5, target=4)
        >>> [name for name, value in nine.items() if value is not None and value is not False]
        ['tgt_mask', 'src_key_padding_mask', 'memory_key_padding_mask', 'tgt_is_causal']
        """
        from pellucid.masks.conventions.transformer import export_transformer

        if convention != "transformer":
            raise MaskError(
                f"three masks were to be converted for '{convention}', but only 'transformer' takes three; name it, or "
                "convert .encoder, .decoder and .cross one by one"
            )
        return export_transformer(
            self, source=source, target=target, batch=batch, heads=heads, dtype=dtype, device=device, blind=blind
        )


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

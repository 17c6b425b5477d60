"""The encoder and the decoder joined: states in, states out, as in the middle of the paper's figure 1."""

from functools import partial

from jaxtyping import Float
from torch import Tensor, nn

from pellucid.errors import ShapeError
from pellucid.masks import Seq2SeqMasks
from pellucid.model.attention import Backend, MultiHeadAttention
from pellucid.model.decoder import Decoded, Decoder, DecoderLayer
from pellucid.model.encoder import Encoder, EncoderLayer
from pellucid.model.positions import Positions
from pellucid.model.sublayer import Activation, FeedForward, Norm, Residual

__all__ = ["EncoderDecoder"]


class EncoderDecoder(nn.Module):
    """The two stacks: states in, states out, as `torch.nn.Transformer`, without embeddings or projection.

    Args:
        d_model: width of the states.
        num_heads: heads of each attention.
        num_encoder_layers: depth of the encoder.
        num_decoder_layers: depth of the decoder.
        d_ff: width inside the feed-forward blocks.
        dropout: on each sublayer's output, while training.
        attention_dropout: on attention weights, while training.
        activation_dropout: inside the feed-forward blocks, while training.
        norm: "post" (the paper) or "pre".
        activation: "relu" (the paper) or "gelu".
        bias: whether linear maps and norms add a bias.
        eps: the norms' guard against division by zero.
        final_norm: whether each stack ends with a norm of its own; None means that pre-norm stacks do.
        backend: how attention is computed.

    >>> import torch
    >>> from pellucid import masks
    >>> stacks = EncoderDecoder(d_model=12, num_heads=3, num_encoder_layers=1, num_decoder_layers=1, d_ff=24)
    >>> stacks(torch.zeros(2, 5, 12), torch.zeros(2, 4, 12), masks.seq2seq(source_lengths=(5, 3))).shape
    torch.Size([2, 4, 12])
    """

    def __init__(
        self,
        *,
        d_model: int = 512,
        num_heads: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        d_ff: int = 2048,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        norm: Norm = "post",
        activation: Activation = "relu",
        bias: bool = True,
        eps: float = 1e-5,
        final_norm: bool | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.d_model = d_model

        attention = partial(
            MultiHeadAttention, d_model, num_heads, bias=bias, dropout=attention_dropout, backend=backend
        )
        feed_forward = partial(FeedForward, d_model, d_ff, activation=activation, bias=bias, dropout=activation_dropout)
        residual = partial(Residual, d_model, norm=norm, dropout=dropout, eps=eps, bias=bias)
        ends = norm == "pre" if final_norm is None else final_norm
        encoder_layers = (
            EncoderLayer(attention(), feed_forward(), residual(), residual()) for _ in range(num_encoder_layers)
        )
        decoder_layers = (
            DecoderLayer(attention(), attention(), feed_forward(), residual(), residual(), residual())
            for _ in range(num_decoder_layers)
        )
        self.encoder = Encoder(encoder_layers, nn.LayerNorm(d_model, eps=eps, bias=bias) if ends else None)
        self.decoder = Decoder(decoder_layers, nn.LayerNorm(d_model, eps=eps, bias=bias) if ends else None)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)

    def forward(
        self,
        source: Float[Tensor, "batch source d_model"],
        target: Float[Tensor, "batch target d_model"],
        masks: Seq2SeqMasks,
        source_positions: Positions | None = None,
        target_positions: Positions | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """(B, S, d_model) and (B, T, d_model) -> (B, T, d_model), each attention under its own mask.

        Schemes of positions that turn queries and keys or add to scores are given here; what they add to embeddings is
        added before, by `states = positions(states, first)`. Where padding stands on the left, `first` is -pads, a number
        for each sample, and masks are `Seq2SeqMasks(~Padding(source_pads), Causal() & ~Padding(target_pads),
        ~Padding(source_pads))`: each sample is then what it is alone.

        Args:
            source: (B, S, d_model) states.
            target: (B, T, d_model) states.
            masks: what each of the three attentions may see.
            source_positions: where sources stand, in each self-attention of the encoder.
            target_positions: where targets stand, in each self-attention of the decoder.

        Raises:
            ShapeError: there are not as many sources as targets, their width is not d_model, or the masks speak of
                another batch.
        """
        fits = source.dim() == target.dim() == 3 and len(source) == len(target)
        if not fits or {source.shape[2], target.shape[2]} != {self.d_model}:
            raise ShapeError(
                f"the stacks were given sources {tuple(source.shape)} and targets {tuple(target.shape)}; give "
                f"(batch, length, {self.d_model}) with one target for each source"
            )
        memory, _ = self.encoder(source, masks.encoder, source_positions)
        decoded: Decoded = self.decoder(target, memory, masks.decoder, masks.cross, positions=target_positions)
        return decoded.states

"""The network: positions, attention, layers, stacks, and the assembled Transformer."""

from pellucid.model.attention import MultiHeadAttention, attend, attention_weights
from pellucid.model.cache import Cache, KeysValues, LayerCache
from pellucid.model.decoder import Decoder, DecoderLayer
from pellucid.model.encoder import Encoder, EncoderLayer
from pellucid.model.stacks import EncoderDecoder
from pellucid.model.sublayer import Dropout, FeedForward, Residual
from pellucid.model.transformer import AttentionWeights, Transformer

__all__ = [
    "AttentionWeights",
    "Cache",
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderDecoder",
    "EncoderLayer",
    "FeedForward",
    "KeysValues",
    "LayerCache",
    "MultiHeadAttention",
    "Residual",
    "Transformer",
    "attend",
    "attention_weights",
]

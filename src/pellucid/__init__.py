"""Pellucid, the Transformer you can see through: built from scratch to be read, run and checked."""

from pellucid import check, masks, view
from pellucid.config import DataConfig, DecodingConfig, ModelConfig, RunConfig, TrainingConfig
from pellucid.decoding import Translation, Translator, load
from pellucid.errors import PellucidError
from pellucid.model import EncoderDecoder, Transformer, positions
from pellucid.version import __version__

__all__ = [
    "DataConfig",
    "DecodingConfig",
    "EncoderDecoder",
    "ModelConfig",
    "PellucidError",
    "RunConfig",
    "TrainingConfig",
    "Transformer",
    "Translation",
    "Translator",
    "__version__",
    "check",
    "load",
    "masks",
    "positions",
    "view",
]

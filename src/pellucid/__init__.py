"""Pellucid, the Transformer you can see through: built from scratch to be read, run and checked.

Each name is imported when it is first asked for (PEP 562), so that `pellucid --help` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pellucid.version import __version__

if TYPE_CHECKING:
    from pellucid import check, masks, view
    from pellucid.config import DataConfig, DecodingConfig, ModelConfig, RunConfig, TrainingConfig
    from pellucid.decoding import Translation, Translator, load
    from pellucid.errors import PellucidError
    from pellucid.model import EncoderDecoder, Transformer, positions

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

ROOMS = {
    "check": (),
    "config": ("DataConfig", "DecodingConfig", "ModelConfig", "RunConfig", "TrainingConfig"),
    "decoding": ("Translation", "Translator", "load"),
    "errors": ("PellucidError",),
    "masks": (),
    "model": ("EncoderDecoder", "Transformer", "positions"),
    "view": (),
}
"""Where names come from: each room can be asked for by its own name too."""

if not TYPE_CHECKING:  # a type checker reads the imports above, and so knows which names there are

    def __getattr__(name: str) -> object:
        for room, names in ROOMS.items():
            if name in (room, *names):
                module = import_module(f"pellucid.{room}")
                return module if name == room else getattr(module, name)
        raise AttributeError(f"module 'pellucid' has no attribute '{name}'")

    def __dir__() -> list[str]:
        return sorted({*__all__, *ROOMS})

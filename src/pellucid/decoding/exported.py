"""What a folder was written for: our own engine, or one that `pellucid export` writes for."""

import importlib.util
from pathlib import Path
from typing import Literal

from pellucid.config import ModelConfig
from pellucid.errors import InteropError, PositionError

__all__ = ["NATIVE", "PLACES", "EngineName", "places_of", "require_library", "require_places", "written_for"]

EngineName = Literal["native", "ctranslate2", "onnx"]
"""What can translate."""

PLACES = 1024
"""Positions that an export knows, unless the model learned another number of them: exports look them up in tables."""

NATIVE = "load the run with the native engine"
"""What is told to who asks an export for what it has not."""

FILES: dict[EngineName, str] = {"ctranslate2": "model.bin", "onnx": "encoder.onnx"}


def written_for(folder: Path) -> EngineName:
    """The engine that a run folder, or what one was exported as, is for."""
    return next((engine for engine, name in FILES.items() if (folder / name).is_file()), "native")


def places_of(config: ModelConfig) -> int:
    """Positions that an export of such a model knows."""
    return config.max_positions if config.positions == "learned" else PLACES


def require_library(module: str, name: str, extra: str) -> None:
    """Refuse to go on without a library.

    Raises:
        InteropError: it is not installed.
    """
    if importlib.util.find_spec(module) is None:
        raise InteropError(f"{name} is not installed; pip install 'pellucid[{extra}]'")


def require_places(needed: int, most: int) -> None:
    """Refuse a sentence of more tokens than an export knows positions.

    Raises:
        PositionError: it is one.
    """
    if needed > most:
        raise PositionError(
            f"a sentence of {needed} tokens was given, but the export knows {most} positions; shorten it, or {NATIVE}"
        )

"""Every setting, frozen and checked, as a value that can be written to TOML and read back; no torch."""

from pellucid.config.model import ModelConfig
from pellucid.config.sections import (
    BEGIN_ID,
    END_ID,
    PAD_ID,
    UNKNOWN_ID,
    DataConfig,
    DecodingConfig,
    RunConfig,
    TrainingConfig,
)
from pellucid.config.settings import Settings

__all__ = [
    "BEGIN_ID",
    "END_ID",
    "PAD_ID",
    "UNKNOWN_ID",
    "DataConfig",
    "DecodingConfig",
    "ModelConfig",
    "RunConfig",
    "Settings",
    "TrainingConfig",
]

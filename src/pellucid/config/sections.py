"""Every setting, frozen and checked, as a value that can be written to TOML and read back.

`DataConfig` says how text becomes batches; `TrainingConfig` how weights are found; `DecodingConfig` how sentences are.
`RunConfig` is these three and the network's `ModelConfig` together: one file, one run. Nothing here knows torch, so that
reading a settings file is instant.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import Field, model_validator

from pellucid.config.model import ModelConfig
from pellucid.config.settings import Count, Finite, NotNegative, Positive, Probability, Settings, known, set_one
from pellucid.errors import ConfigError

__all__ = [
    "BEGIN_ID",
    "END_ID",
    "PAD_ID",
    "UNKNOWN_ID",
    "DataConfig",
    "DecodingConfig",
    "RunConfig",
    "TrainingConfig",
]

PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID = 0, 1, 2, 3
"""The four ids that are not text, the same in every vocabulary."""


class DataConfig(Settings):
    """How text becomes batches.

    `tokenizer` is SentencePiece's "unigram" or "bpe". `normalization` is applied to text before it is cut into pieces:
    "identity" changes nothing, "nfkc" and "nmt_nfkc" are SentencePiece's rules; all of them turn runs of spaces into
    one and drop spaces at both ends. `max_length` counts a side's tokens with the end mark; `over_length` says what
    happens to a longer pair: "drop" leaves it out and reports its line, "truncate" cuts it.
    `batch_tokens` bounds a batch's padded size: rows times (longest source + longest target). `held_out` pairs are taken
    out for validation where none are given, a tenth of all at most. `target_language`, a code such as "de" or "zh",
    chooses how BLEU cuts words.
    """

    section = "data"

    tokenizer: Literal["unigram", "bpe"] = "unigram"
    shared_vocabulary: bool = True
    normalization: Literal["identity", "nfkc", "nmt_nfkc"] = "identity"
    vocabulary_lines: Count = 200_000
    max_length: Annotated[int, Field(ge=2)] = 256
    over_length: Literal["drop", "truncate"] = "drop"
    batch_tokens: Count = 4096
    held_out: Count = 500
    target_language: str = ""


class TrainingConfig(Settings):
    """How weights are found.

    `learning_rate` is the peak, reached exactly at step `warmup`, after which it falls with the inverse square root of
    the step; over the last share `cooldown` of the steps it falls towards zero as well. One step is `accumulate`
    batches, shared out over all processes. `steps` bounds the run; `minutes`, where given, chooses `steps` instead,
    once, by timing this machine when the run begins, and keeps `warmup` to at most a fifth of them. `precision` "auto"
    chooses once too, the faster of float32 and bfloat16. `clip_norm` 0 clips nothing.

    Every `validate_every` steps the validation loss is measured and the first `validation_lines` are translated for
    BLEU and chrF; `best` says which of these decides the best weights. Every `save_every` steps all that a resumption
    needs is written, and the newest `keep` such checkpoints stay. `tensorboard` writes its event files too.
    """

    section = "training"

    steps: Count = 20_000
    minutes: Positive | None = None
    warmup: Count = 1000
    cooldown: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    learning_rate: Positive = 1e-3
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    epsilon: Positive = 1e-9
    weight_decay: NotNegative = 0.0
    clip_norm: NotNegative = 1.0
    accumulate: Count = 1
    label_smoothing: Probability = 0.1
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    log_every: Count = 50
    validate_every: Count = 500
    validation_lines: Annotated[int, Field(ge=0)] = 200
    best: Literal["chrf", "bleu", "loss"] = "chrf"
    save_every: Count = 500
    keep: Count = 5
    tensorboard: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.best != "loss" and not self.validation_lines:
            raise ValueError(
                f"best = '{self.best}' needs translations, but validation_lines is 0; raise it, or choose best = 'loss'"
            )
        return self


class DecodingConfig(Settings):
    """How sentences are found: the beam's width, the length penalty and its rule, and how long texts may be.

    A translation may have at most `length_ratio` times its source's tokens plus `length_extra`, and `max_length` where
    that is given. A line of more than `max_source_length` tokens, or than the model has learned positions for, is split
    at sentence ends, truncated, or refused, as `too_long` says.
    """

    section = "decoding"

    beam: Count = 4
    length_penalty: Finite = 0.6
    length_ratio: Positive = 2.0
    length_rule: Literal["gnmt", "power"] = "gnmt"
    length_extra: Annotated[int, Field(ge=1)] = 10
    max_length: Count | None = None
    max_source_length: Annotated[int, Field(ge=2)] | None = None
    too_long: Literal["split", "truncate", "refuse"] = "split"
    batch_tokens: Count = 4096


class RunConfig(Settings):
    r"""All settings of one run, as they stand in its `run.toml`.

    >>> RunConfig.from_toml("[training]\nsteps = 300").training.steps
    300
    >>> RunConfig.from_toml("[training]\nstpes = 300")
    Traceback (most recent call last):
        ...
    pellucid.errors.ConfigError: training: unknown setting 'stpes'; did you mean 'steps'?
    """

    section = "settings"

    model: ModelConfig = Field(default_factory=ModelConfig.small)
    data: DataConfig = Field(default_factory=DataConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    decoding: DecodingConfig = Field(default_factory=DecodingConfig)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        sizes = (self.model.source_vocab_size, self.model.target_vocab_size)
        if self.data.shared_vocabulary and sizes[0] != sizes[1]:
            raise ValueError(
                f"data.shared_vocabulary is true, but model.source_vocab_size is {sizes[0]} and "
                f"model.target_vocab_size {sizes[1]}; make them equal, or set data.shared_vocabulary = false"
            )
        if self.model.tie_embeddings == "all" and not self.data.shared_vocabulary:
            raise ValueError(
                "model.tie_embeddings = 'all' needs data.shared_vocabulary = true; share the vocabulary, "
                "or tie 'decoder' or 'none'"
            )
        if self.model.positions == "learned" and self.data.max_length > self.model.max_positions:
            raise ValueError(
                f"data.max_length {self.data.max_length} is past the {self.model.max_positions} positions that the "
                "model learns; raise model.max_positions, or lower data.max_length"
            )
        return self

    @classmethod
    def from_toml(cls, text: str, overrides: Sequence[str] = ()) -> Self:
        """Read settings from TOML and apply `section.name=value` overrides, later ones winning.

        Settings left out have the defaults of a small model, tied as far as its vocabularies allow. Values of overrides
        are TOML; what is not TOML is a string.

        Raises:
            ConfigError: the text is not TOML, or a setting is unknown or cannot have its value.
        """
        try:
            table: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"the settings are not TOML: {error}; see `pellucid info` for an example") from None
        for override in overrides:
            set_one(table, override)
        for name, section in table.items():
            if name not in cls.model_fields:
                raise ConfigError(f"settings: unknown section '{name}'; {known(name, cls.model_fields)}")
            if not isinstance(section, dict):
                raise ConfigError(f"settings: '{name}' was given {section!r}, but it is a section; write [{name}]")
        data = DataConfig(**table.get("data", {}))
        tied = "all" if data.shared_vocabulary else "decoder"
        return cls(
            model=ModelConfig.small(**{"tie_embeddings": tied, **table.get("model", {})}),
            data=data,
            training=TrainingConfig(**table.get("training", {})),
            decoding=DecodingConfig(**table.get("decoding", {})),
        )

    @classmethod
    def from_file(cls, path: Path | None, overrides: Sequence[str] = ()) -> Self:
        """Read settings from a TOML file, or begin from the defaults where there is none."""
        if path is None:
            return cls.from_toml("", overrides)
        try:
            return cls.from_toml(path.read_text(encoding="utf-8-sig"), overrides)
        except OSError as error:
            raise ConfigError(f"the settings {path} cannot be read ({error.strerror}); check the path") from None
        except UnicodeDecodeError:
            raise ConfigError(f"the settings {path} are not UTF-8 text; save the file as UTF-8") from None
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def to_toml(self) -> str:
        """Write every setting, so that a later version's defaults cannot change an old run."""
        return tomli_w.dumps(self.model_dump(exclude_none=True, mode="json"))

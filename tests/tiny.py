"""A training small enough for a test: made-up text or made-up ids, a tiny network, and a keeper that keeps in memory."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from pellucid.config import DataConfig, ModelConfig, RunConfig, TrainingConfig
from pellucid.jobs.material import TextFiles
from pellucid.model import Transformer
from pellucid.run import Checkpoint
from pellucid.text.batch import Example
from pellucid.training import Event, Objective, Trainer
from pellucid.training.launch import launch

SOURCES = ["the", "a", "cat", "dog", "bird", "sees", "likes", "hears", "red", "green", "old", "house", "tree", "river"]
TARGETS = [
    "der",
    "ein",
    "Katze",
    "Hund",
    "Vogel",
    "sieht",
    "mag",
    "hört",
    "rot",
    "grün",
    "alt",
    "Haus",
    "Baum",
    "Fluss",
]

SETTINGS = {
    "model.source_vocab_size": "310",
    "model.target_vocab_size": "310",
    "model.d_model": "16",
    "model.num_heads": "2",
    "model.d_ff": "24",
    "model.num_encoder_layers": "1",
    "model.num_decoder_layers": "1",
    "data.batch_tokens": "220",
    "decoding.length_extra": "1",
    "decoding.length_ratio": "1",
    "training.precision": "float32",
    "training.learning_rate": "0.01",
    "training.warmup": "5",
}


def overrides(changes: Mapping[str, object] | None = None) -> list[str]:
    """The settings above as `--set` takes them, some of them changed."""
    return [f"{name}={value}" for name, value in {**SETTINGS, **(changes or {})}.items()]


def lines(count: int, seed: int = 1) -> tuple[list[str], list[str]]:
    """Sentences of two to six words, and the same word by word in another language, backwards."""
    draw = random.Random(seed)
    rows = [[draw.randrange(len(SOURCES)) for _ in range(draw.randint(2, 6))] for _ in range(count)]
    return [" ".join(SOURCES[word] for word in row) for row in rows], [
        " ".join(TARGETS[word] for word in reversed(row)) for row in rows
    ]


def write_text(folder: Path, count: int = 60, seed: int = 1) -> TextFiles:
    """The sentences in two files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = TextFiles(folder / f"{seed}.en", folder / f"{seed}.de")
    for path, side in zip((files.source, files.target), lines(count, seed), strict=True):
        assert path is not None
        path.write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    return files


def config(training: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None, **model: Any) -> RunConfig:
    """Settings of a network with 23 source and 29 target words."""
    sizes = {"source_vocab_size": 23, "target_vocab_size": 29, "d_model": 14, "num_heads": 2, "d_ff": 11}
    depths = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    chosen = {"precision": "float64", "best": "loss", "warmup": 3, "learning_rate": 0.01, **(training or {})}
    return RunConfig(
        model=ModelConfig(**{**sizes, **depths, **model}),
        data=DataConfig(**{"shared_vocabulary": False, "batch_tokens": 61, **(data or {})}),
        training=TrainingConfig(**chosen),
    )


def examples(count: int, seed: int = 1) -> list[Example]:
    """Pairs of one to five made-up ids a side."""
    draw = random.Random(seed)

    def side(words: int) -> list[int]:
        return [draw.randrange(4, words) for _ in range(draw.randint(1, 5))]

    return [Example(line, side(23), side(29)) for line in range(1, count + 1)]


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two sets of tensors are the same, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Memory:
    """A keeper that copies what it is given, and keeps all of it."""

    def __init__(self) -> None:
        self.checkpoints: list[Checkpoint] = []
        self.best: list[tuple[dict[str, Tensor], dict[str, Any]]] = []

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint."""
        self.checkpoints.append(
            Checkpoint(copied(checkpoint.weights), copied(checkpoint.optimizer), dict(checkpoint.state))
        )

    def save_best(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Keep the best weights."""
        self.best.append((copied(weights), dict(facts)))

    @property
    def steps(self) -> list[int]:
        """The steps that were saved."""
        return [checkpoint.state["step"] for checkpoint in self.checkpoints]


@cache
def fabric(precision: str) -> Fabric:
    """One for each precision: they are the same, and take a while to make."""
    return launch(torch.device("cpu"), precision)


def objective(settings: RunConfig) -> Objective:
    """The model of these settings with its loss; the same numbers at every call."""
    torch.manual_seed(settings.training.seed)
    return Objective(Transformer(settings.model), settings.training.label_smoothing)


def trainer(
    settings: RunConfig,
    pairs: Sequence[Example],
    keeper: Memory,
    *,
    tell: Callable[[Event], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
    losses: Iterable[float] | None = None,
) -> Trainer:
    """A trainer on the CPU, whose validations give these losses in turn, or all 1."""
    values = iter(losses) if losses is not None else iter(lambda: 1.0, None)
    return Trainer(
        objective(settings),
        pairs,
        settings,
        fabric=fabric(settings.training.precision),
        keeper=keeper,
        validate=lambda: {settings.training.best: next(values)},
        tell=tell,
        should_stop=should_stop,
    )

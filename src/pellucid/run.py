"""A run on disk: settings, tokenizers, weights, and all that a resumption needs, written so that no kill can tear it.

    RUN/
      run.toml                  format version, every setting, and what the run was begun on
      source.model, target.model    SentencePiece tokenizers (one file, tokenizer.model, where they are shared)
      best.safetensors          the weights of the best validation
      checkpoints/00001000/     weights.safetensors, optimizer.safetensors, state.toml
      metrics.jsonl             a line for each report of the training

Every file and folder is written under a temporary name, flushed to the disk, and renamed. Nothing is loaded by pickle.
"""

import json
import os
import shutil
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pellucid.config import RunConfig
from pellucid.errors import ConfigError, RunError
from pellucid.text.tokenizer import Tokenizer
from pellucid.version import __version__

__all__ = ["FORMAT", "Checkpoint", "Run", "load_weights", "write_atomically"]

FORMAT = 1
"""The version of the layout above; it changes when an older reader would misread a run."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that a resumption needs: weights, the optimiser's memory, and plain facts (step, epoch, best so far ...)."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """An opened run folder.

    Attributes:
        path: the folder.
        config: every setting, as the run uses it.
        source_tokenizer: text <-> ids of the source language.
        target_tokenizer: text <-> ids of the target language; equal to the source's where they share a vocabulary.
        corpus: a fingerprint of the training text.
    """

    path: Path
    config: RunConfig
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    corpus: str

    @classmethod
    def exists(cls, path: Path) -> bool:
        """Whether a run has been begun there."""
        return (path / "run.toml").is_file()

    @classmethod
    def create(cls, path: Path, config: RunConfig, source: Tokenizer, target: Tokenizer, corpus: str) -> Self:
        """Begin a run in a folder that is missing, empty, or holds a run that was killed before it had begun.

        Raises:
            RunError: the folder holds a run or something else, or cannot be written.
        """
        if cls.exists(path):
            raise RunError(f"{path} already holds a run; continue it with --resume, or choose another folder")
        ours = {"tokenizer.model", "source.model", "target.model"}
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file, but a run is a folder; choose another name")
        if path.is_dir() and any(entry.name.removesuffix(".tmp") not in ours for entry in path.iterdir()):
            raise RunError(f"{path} holds files that are not a run's; choose an empty or a new folder")
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{path} cannot be made ({error.strerror}); choose a folder that can be written") from None
        if source == target:
            write_atomically(path / "tokenizer.model", source.to_bytes())
        else:
            write_atomically(path / "source.model", source.to_bytes())
            write_atomically(path / "target.model", target.to_bytes())
        run = cls(path, config, source, target, corpus)
        run.write_settings()
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a run that has been begun.

        Raises:
            RunError: there is none, its format is newer than this version's, or a part of it is missing or damaged.
        """
        try:
            table = tomllib.loads((path / "run.toml").read_text(encoding="utf-8"))
        except OSError:
            raise RunError(
                f"{path} holds no run (no run.toml); give the folder that `pellucid train --out` wrote"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path / 'run.toml'} cannot be read: {error}; restore it from a copy") from None
        if table.get("format") != FORMAT:
            raise RunError(
                f"{path} was written in format {table.get('format')} by Pellucid {table.get('pellucid')}, but this "
                f"version {__version__} reads format {FORMAT}; use the version that wrote it"
            )
        corpus = str(table.get("corpus", ""))
        sections = {name: section for name, section in table.items() if isinstance(section, dict)}
        try:
            config = RunConfig.from_toml(tomli_w.dumps(sections))
        except ConfigError as error:
            raise RunError(f"{path / 'run.toml'}: {error}") from None
        names = ("tokenizer.model",) * 2 if config.data.shared_vocabulary else ("source.model", "target.model")
        source, target = (Tokenizer.load(path / name) for name in names)
        return cls(path, config, source, target, corpus)

    def with_config(self, config: RunConfig) -> "Run":
        """The same run under changed settings, written to its run.toml."""
        run = Run(self.path, config, self.source_tokenizer, self.target_tokenizer, self.corpus)
        run.write_settings()
        return run

    def write_settings(self) -> None:
        """Write run.toml, which is what makes a folder a run."""
        head = tomli_w.dumps({"format": FORMAT, "pellucid": __version__, "corpus": self.corpus})
        write_atomically(self.path / "run.toml", f"{head}\n{self.config.to_toml()}".encode())

    def save_best(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write the best weights so far, with the facts of their validation."""
        place = self.path / "best.safetensors.tmp"
        save_file(_plain(weights), place, metadata={name: str(value) for name, value in facts.items()})
        _settle(place, self.path / "best.safetensors")

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then forget all but the newest `training.keep`."""
        step = int(checkpoint.state["step"])
        folder = self.path / "checkpoints" / f"{step:08d}"
        draft = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save_file(_plain(checkpoint.weights), draft / "weights.safetensors")
        save_file(_plain(checkpoint.optimizer), draft / "optimizer.safetensors")
        (draft / "state.toml").write_bytes(tomli_w.dumps(dict(checkpoint.state)).encode())
        for file in draft.iterdir():
            _flush(file)
        shutil.rmtree(folder, ignore_errors=True)
        _settle(draft, folder)
        for old in self.checkpoints()[: -self.config.training.keep]:
            # Renamed first, so that a kill in the middle of the removal leaves no half checkpoint under a true name.
            doomed = old.rename(old.with_name(old.name + ".tmp"))
            shutil.rmtree(doomed)
        return folder

    def checkpoints(self) -> list[Path]:
        """The folders of all whole checkpoints, oldest first."""
        return sorted(place for place in (self.path / "checkpoints").glob("*") if place.name.isdigit())

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint, or None where none has been written yet; drafts of a killed save are cleared away."""
        for draft in (self.path / "checkpoints").glob("*.tmp"):
            shutil.rmtree(draft, ignore_errors=True)
        folders = self.checkpoints()
        if not folders:
            return None
        try:
            state = tomllib.loads((folders[-1] / "state.toml").read_text(encoding="utf-8"))
            weights = load_file(folders[-1] / "weights.safetensors")
            return Checkpoint(weights, load_file(folders[-1] / "optimizer.safetensors"), state)
        except (OSError, tomllib.TOMLDecodeError, SafetensorError) as error:
            raise RunError(
                f"the checkpoint {folders[-1]} is damaged ({error}); remove that folder to continue from the one before"
            ) from None

    def weights_file(self) -> Path:
        """The weights to translate with: the best, or the newest where none has been validated."""
        best = self.path / "best.safetensors"
        if best.is_file():
            return best
        if folders := self.checkpoints():
            return folders[-1] / "weights.safetensors"
        raise RunError(f"{self.path} holds no weights yet; train it with --resume until its first checkpoint")

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line torn by a kill is left out."""
        file = self.path / "metrics.jsonl"
        records = []
        for line in file.read_text(encoding="utf-8").split("\n") if file.is_file() else ():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return records

    def forget_metrics_after(self, step: int) -> None:
        """Drop the reports of steps that a resumption will take again."""
        kept: Iterable[str] = (json.dumps(record) + "\n" for record in self.metrics() if record["step"] <= step)
        write_atomically(self.path / "metrics.jsonl", "".join(kept).encode())


def load_weights(module: nn.Module, weights: Path | Mapping[str, Tensor]) -> dict[str, str]:
    """Copy weights into a module, name by name, and hand back the facts written beside them.

    Raises:
        RunError: the file cannot be read, or its names or shapes are not the module's.
    """
    facts: dict[str, str] = {}
    if isinstance(weights, Path):
        try:
            with safe_open(weights, framework="pt") as file:
                facts = file.metadata() or {}
            weights = load_file(weights)
        except (OSError, SafetensorError) as error:
            raise RunError(f"the weights {weights} cannot be read ({error}); restore the file from a copy") from None
    own = dict(module.named_parameters())
    for name in sorted(own.keys() ^ weights.keys()):
        which = "lack" if name in own else "have"
        raise RunError(f"the weights {which} '{name}', unlike the model; use the settings they were trained with")
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != weights[name].shape:
                raise RunError(
                    f"'{name}' has shape {tuple(weights[name].shape)} in the weights, but {tuple(parameter.shape)} in "
                    "the model; use the settings they were trained with"
                )
            parameter.copy_(weights[name])
    return facts


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a kill, sees the old content or the new, never a part."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_bytes(content)
    _settle(draft, path)


def _settle(draft: Path, path: Path) -> None:
    """Flush a draft and rename it to its true name; then flush the folder, so that the rename lasts too."""
    _flush(draft)
    draft.replace(path)
    _flush(path.parent)


def _flush(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies outside autograd and on the CPU, as safetensors writes them."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

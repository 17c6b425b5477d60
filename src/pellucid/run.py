"""A run on disk: settings, tokenizers, weights, and all that a resumption needs, written so that no kill can tear it.

    RUN/
      run.toml                  format version, every setting, and what the run was begun on
      source.model, target.model    SentencePiece tokenizers (one file, tokenizer.model, where the vocabulary is shared)
      best.safetensors          the weights of the best validation
      checkpoints/00001000/     weights.safetensors, optimizer.safetensors, state.toml
      metrics.jsonl             a line for each report of the training

Every file and folder is written under a name that ends in .tmp, flushed to the disk, and renamed; only metrics.jsonl
grows in place. Nothing is loaded by pickle.
"""

import json
import shutil
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pellucid.config import RunConfig
from pellucid.disk import flush, new_draft, remove, settle, write_atomically, writing
from pellucid.errors import ConfigError, RunError
from pellucid.text.tokenizer import Tokenizer
from pellucid.version import __version__

__all__ = ["FORMAT", "Checkpoint", "Run", "load_weights", "write_atomically"]

FORMAT = 1
"""The version of the layout above; it changes when an older reader would misread a run."""

BEGUN = frozenset({"run.toml", "tokenizer.model", "source.model", "target.model"})
"""What a run writes while it begins; a folder with some of it and no run.toml was killed then, and may be taken."""


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
        corpus: a fingerprint of the text.
        asked: the settings as they were asked for, before the vocabulary's size and this machine's speed were known.
    """

    path: Path
    config: RunConfig
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    corpus: str
    asked: RunConfig

    @classmethod
    def exists(cls, path: Path) -> bool:
        """Whether a run has been begun there."""
        return (path / "run.toml").is_file()

    @classmethod
    def require_free(cls, path: Path) -> None:
        """Refuse a folder in which no run can begin; one is missing, empty, or left by a run killed while it began.

        Raises:
            RunError: the folder holds a run or something else.
        """
        if cls.exists(path):
            raise RunError(f"{path} already holds a run; continue it with --resume, or choose another folder")
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file, but a run is a folder; choose another name")
        for entry in path.iterdir() if path.is_dir() else ():
            bare = entry.name == "checkpoints" and entry.is_dir() and not any(entry.iterdir())
            if not bare and entry.name.removesuffix(".tmp") not in BEGUN:
                raise RunError(f"{path} holds '{entry.name}', which is no run's; choose an empty or a new folder")

    @classmethod
    def create(
        cls,
        path: Path,
        config: RunConfig,
        source: Tokenizer,
        target: Tokenizer,
        corpus: str,
        asked: RunConfig | None = None,
    ) -> Self:
        """Begin a run in a folder that is free; its run.toml is written last, and makes it a run.

        Raises:
            RunError: the folder holds a run or something else, or cannot be written.
        """
        cls.require_free(path)
        with writing(path):
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        run = cls(path, config, source, target, corpus, asked or config)
        for name, tokenizer in zip(_tokenizer_names(config), (source, target), strict=True):
            write_atomically(path / name, tokenizer.to_bytes())
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
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(
                f"{path} holds no run (no run.toml); give the folder that `pellucid train --out` wrote"
            ) from None
        except OSError as error:
            raise RunError(f"{path / 'run.toml'} cannot be read ({error.strerror}); see to its permissions") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path / 'run.toml'} cannot be read: {error}; restore it from a copy") from None
        if table.get("format") != FORMAT:
            raise RunError(
                f"{path} was written in format {table.get('format')} by Pellucid {table.get('pellucid')}, but this "
                f"version {__version__} reads format {FORMAT}; use the version that wrote it"
            )
        corpus = str(table.get("corpus", ""))
        asked = table.pop("asked", {})
        sections = {name: section for name, section in table.items() if isinstance(section, dict)}
        try:
            config = RunConfig.from_toml(tomli_w.dumps(sections))
            asked = RunConfig.from_toml(tomli_w.dumps(asked)) if asked else config
        except ConfigError as error:
            raise RunError(f"{path / 'run.toml'}: {error}") from None
        source, target = (Tokenizer.load(path / name) for name in _tokenizer_names(config))
        return cls(path, config, source, target, corpus, asked)

    def with_config(self, config: RunConfig, asked: RunConfig | None = None) -> "Run":
        """The same run under changed settings; they last once `write_settings` has been called."""
        return replace(self, config=config, asked=asked or self.asked)

    def write_settings(self) -> None:
        """Write run.toml, which is what makes a folder a run."""
        head = tomli_w.dumps({"format": FORMAT, "pellucid": __version__, "corpus": self.corpus})
        asked = tomli_w.dumps({"asked": tomllib.loads(self.asked.to_toml())})
        write_atomically(self.path / "run.toml", f"{head}\n{self.config.to_toml()}\n{asked}".encode())

    def save_best(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write the best weights so far, with the facts of their validation."""
        place = self.path / "best.safetensors"
        with writing(place):
            draft = new_draft(place)
            _write_tensors(draft / place.name, weights, facts)
            settle(draft / place.name, place)
            draft.rmdir()

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then forget all but the newest `training.keep`."""
        step = int(checkpoint.state["step"])
        folder = self.path / "checkpoints" / f"{step:08d}"
        with writing(folder):
            draft = new_draft(folder)
            _write_tensors(draft / "weights.safetensors", checkpoint.weights)
            _write_tensors(draft / "optimizer.safetensors", checkpoint.optimizer)
            (draft / "state.toml").write_bytes(tomli_w.dumps(dict(checkpoint.state)).encode())
            for file in draft.iterdir():
                flush(file)
            if folder.exists():
                remove(folder)
            settle(draft, folder)
            for old in self.checkpoints()[: -self.config.training.keep]:
                remove(old)
        return folder

    def checkpoints(self) -> list[Path]:
        """The folders of all whole checkpoints, oldest first."""
        whole = [place for place in (self.path / "checkpoints").glob("*") if place.name.isdecimal()]
        return sorted(whole, key=lambda place: int(place.name))

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint, or None where none has been written yet.

        Raises:
            RunError: it is damaged.
        """
        folders = self.checkpoints()
        if not folders:
            return None
        try:
            state = tomllib.loads((folders[-1] / "state.toml").read_text(encoding="utf-8"))
            weights = load_file(folders[-1] / "weights.safetensors")
            return Checkpoint(weights, load_file(folders[-1] / "optimizer.safetensors"), state)
        except (OSError, ValueError, SafetensorError) as error:  # text that is not TOML or UTF-8 is a ValueError
            raise RunError(
                f"the checkpoint {folders[-1]} is damaged ({error}); remove that folder to continue from the one before"
            ) from None

    def clear_drafts(self) -> None:
        """Remove what a kill left half written; only for whoever is about to write, for it would take a live draft."""
        for draft in (*self.path.glob("*.tmp"), *(self.path / "checkpoints").glob("*.tmp")):
            if draft.is_dir():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink(missing_ok=True)

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
        place = self.path / "metrics.jsonl"
        with writing(place), place.open("a", encoding="utf-8") as file:
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


def load_weights(module: nn.Module, weights: Path | Mapping[str, Tensor]) -> dict[str, Any]:
    """Copy weights into a module, name by name, and hand back the facts written beside them.

    Raises:
        RunError: the file cannot be read, or its names or shapes are not the module's.
    """
    facts: dict[str, Any] = {}
    if isinstance(weights, Path):
        try:
            with safe_open(weights, framework="pt") as file:
                facts = json.loads((file.metadata() or {}).get("facts", "{}"))
            weights = load_file(weights)
        except (OSError, SafetensorError, json.JSONDecodeError) as error:
            raise RunError(f"the weights {weights} cannot be read ({error}); restore the file from a copy") from None
    own = dict(module.named_parameters())
    for name in sorted(own.keys() ^ weights.keys()):
        which = "lack" if name in own else "have"
        raise RunError(f"the weights {which} '{name}', unlike the model; use the settings they were trained with")
    for name, parameter in own.items():
        if parameter.shape != weights[name].shape:
            raise RunError(
                f"'{name}' has shape {tuple(weights[name].shape)} in the weights, but {tuple(parameter.shape)} in "
                "the model; use the settings they were trained with"
            )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    return facts


def _tokenizer_names(config: RunConfig) -> tuple[str, str]:
    """The files of the source and the target tokenizer: the same one where the vocabulary is shared."""
    return ("tokenizer.model", "tokenizer.model") if config.data.shared_vocabulary else ("source.model", "target.model")


def _write_tensors(place: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None) -> None:
    """Write tensors, contiguous and from the CPU, with facts beside them, in a file that others may read as any other.

    Safetensors makes a file of its own, which nobody else may read, and renames it.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    place.touch()
    mode = place.stat().st_mode
    try:
        # One entry: safetensors writes several in an order of its own, and the same run would give other bytes.
        save_file(plain, place, metadata={"facts": json.dumps(dict(facts or {}), sort_keys=True)})
    except SafetensorError as error:
        raise RunError(f"{place} cannot be written ({error}); see to the disk, its room and permissions") from None
    place.chmod(mode)

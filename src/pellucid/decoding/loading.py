"""Opens a run on disk as something that translates."""

from pathlib import Path
from typing import get_args

from pellucid.decoding.ctranslate2 import CTranslate2Engine
from pellucid.decoding.engines import ModelEngine
from pellucid.decoding.exported import EngineName, places_of, written_for
from pellucid.decoding.onnx import OnnxEngine
from pellucid.decoding.precision import Precision
from pellucid.decoding.translate import Translator
from pellucid.device import pick_device
from pellucid.errors import ConfigError, RunError
from pellucid.model import Transformer
from pellucid.run import Run, load_weights

__all__ = ["load"]


def load(
    path: str | Path, device: str = "auto", *, precision: Precision | None = None, engine: str | None = None
) -> Translator:
    """Open a run, or what a run was exported as, and make its best weights ready to translate.

    Args:
        path: the folder that `pellucid train --out` or `pellucid export --out` wrote.
        device: "auto" takes a GPU where there is one; else a torch device such as "cpu" or "cuda:1". Exports run on the
            CPU.
        precision: the numbers to translate in: "float32", "bfloat16", "int8" for linear maps in 8-bit integers, or
            "auto" for the faster of the first two on this machine. None is float32, and for an export what it was
            written in.
        engine: "native", "ctranslate2" or "onnx"; None takes the one that the folder was written for.

    Raises:
        RunError: the folder holds no run, or a damaged one, or was written for another engine.
        ConfigError: the device is not there, or the precision or the engine is unknown.
        InteropError: the engine is not installed.
    """
    path = Path(path)
    if engine not in (None, *get_args(EngineName)):
        known = ", ".join(map(repr, get_args(EngineName)))
        raise ConfigError(f"engine was given {engine!r}, but it knows {known}; choose one")
    run, own = Run.open(path), written_for(path)
    sides = (run.source_tokenizer, run.target_tokenizer)
    if engine not in (None, own):
        remedy = f"pellucid export {path} --to {engine} --out NEW" if own == "native" else f"it is for '{own}'"
        raise RunError(f"{path} was not written for the engine '{engine}'; {remedy}")
    if own != "native" and device not in ("auto", "cpu"):
        raise ConfigError(f"device was given {device!r}, but {path} is an export, which runs on the CPU; leave it out")
    settings, places = run.config.decoding, places_of(run.config.model)
    if own == "ctranslate2":
        return Translator(CTranslate2Engine(path, *sides, precision, most_tokens=places), *sides, settings)
    if own == "onnx":
        return Translator(OnnxEngine(path, precision, most_tokens=places), *sides, settings)
    model = Transformer(run.config.model)
    load_weights(model, run.weights_file())
    model = model.to(pick_device(device))
    return Translator(ModelEngine(model, precision or "float32"), *sides, settings)

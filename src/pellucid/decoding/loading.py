"""Opens a run on disk as something that translates."""

from pathlib import Path

from pellucid.decoding.engines import ModelEngine
from pellucid.decoding.precision import Precision
from pellucid.decoding.translate import Translator
from pellucid.device import pick_device
from pellucid.model import Transformer
from pellucid.run import Run, load_weights

__all__ = ["load"]


def load(path: str | Path, device: str = "auto", *, precision: Precision = "float32") -> Translator:
    """Open a run and make its best weights ready to translate.

    Args:
        path: the folder that `pellucid train --out` wrote.
        device: "auto" takes a GPU where there is one; else a torch device such as "cpu" or "cuda:1".
        precision: the numbers to translate in: "float32", "bfloat16", "int8" for linear maps in 8-bit integers, or
            "auto" for the faster of the first two on this machine.

    Raises:
        RunError: the folder holds no run, or a damaged one.
        ConfigError: the device is not there, or the precision is unknown.
    """
    run = Run.open(Path(path))
    model = Transformer(run.config.model)
    load_weights(model, run.weights_file())
    model = model.to(pick_device(device))
    engine = ModelEngine(model, precision)
    return Translator(engine, run.source_tokenizer, run.target_tokenizer, run.config.decoding)

"""Opens a run on disk as something that translates."""

from pathlib import Path

from pellucid.decoding.translate import Translator
from pellucid.device import pick_device
from pellucid.model import Transformer
from pellucid.run import Run, load_weights

__all__ = ["load"]


def load(path: str | Path, device: str = "auto") -> Translator:
    """Open a run and make its best weights ready to translate.

    Args:
        path: the folder that `pellucid train --out` wrote.
        device: "auto" takes a GPU where there is one; else a torch device such as "cpu" or "cuda:1".

    Raises:
        RunError: the folder holds no run, or a damaged one.
        ConfigError: the device is not there.
    """
    run = Run.open(Path(path))
    model = Transformer(run.config.model)
    load_weights(model, run.weights_file())
    model = model.to(pick_device(device))
    return Translator(model, run.source_tokenizer, run.target_tokenizer, run.config.decoding)

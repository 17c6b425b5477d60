"""Devices, precision and processes, from the settings and from what `torchrun` left in the environment."""

import os
import warnings
from typing import Literal

import torch
from lightning_fabric import Fabric

from pellucid.errors import ConfigError

__all__ = ["launch"]

PRECISIONS: dict[str, Literal["32-true", "bf16-mixed"]] = {
    "auto": "32-true",
    "float32": "32-true",
    "bfloat16": "bf16-mixed",
    "float64": "32-true",  # "as the weights are": the trainer makes them so, for Fabric's own hands back a float32 loss
}


def launch(device: torch.device, precision: str) -> Fabric:
    """Join the processes of this training: one, or as many as `torchrun` started.

    Args:
        device: what kind of device to train on; under `torchrun`, each process takes its own.
        precision: "float32", "bfloat16" (weights float32, products bfloat16), "float64"; "auto" while it is not chosen.

    Raises:
        ConfigError: the device is one that Pellucid does not train on.
    """
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"training was asked for on '{device}', but it runs on 'cpu' and 'cuda'; take one of them")
    processes, here = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    together = processes > 1
    single = [device.index] if device.index is not None else 1
    fabric = Fabric(
        accelerator="cpu" if device.type == "cpu" else "cuda",
        devices=here if together or device.type == "cpu" else single,
        num_nodes=processes // here if together else 1,
        strategy="ddp" if together else "auto",
        precision=PRECISIONS[precision],
    )
    with warnings.catch_warnings():
        # Fabric suggests a launcher of its own whenever it runs alone; one process is what was asked for.
        warnings.filterwarnings("ignore", message=".*will be ignored.*", module="lightning_fabric")
        fabric.launch()
    return fabric

"""Training figures for TensorBoard, where it is installed."""

from collections.abc import Callable
from pathlib import Path

from pellucid.errors import ConfigError
from pellucid.training import Event, StepTaken, Validated

__all__ = ["require_tensorboard", "tensorboard"]


def require_tensorboard() -> None:
    """Refuse to go on where TensorBoard is not installed.

    Raises:
        ConfigError: it is not.
    """
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise ConfigError(
            "training.tensorboard is on, but TensorBoard is not installed; pip install 'pellucid[tensorboard]'"
        ) from None


def tensorboard(folder: Path, after: int) -> Callable[[Event], None]:
    """A listener that writes each figure of each event into TensorBoard's files in `folder`/tensorboard.

    What an earlier training wrote there of steps past `after`, where this one begins, is no longer shown.

    Raises:
        ConfigError: TensorBoard is not installed.
    """
    require_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=after + 1)

    def write(event: Event) -> None:
        if not isinstance(event, StepTaken | Validated):
            return
        record = event.record()
        kind, step = record.pop("kind"), record.pop("step")
        for name, value in record.items():
            writer.add_scalar(f"{kind}/{name}", float(value), step)
        writer.flush()

    return write

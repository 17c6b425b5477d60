"""Ctrl-C and SIGTERM, turned into a question that a long job asks between two steps."""

import signal
from collections.abc import Callable
from types import FrameType

__all__ = ["stopping"]


class stopping:  # noqa: N801 - used as a context, like a function
    """While it lasts, the first Ctrl-C or SIGTERM asks the training to stop, and a second one stops at once."""

    def __enter__(self) -> Callable[[], bool]:
        self.asked = False
        self.before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return lambda: self.asked

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self.asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.asked = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

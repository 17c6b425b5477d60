"""What one call asks of a search: the run's settings, and what was asked for instead, checked before any work."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pellucid.config import DecodingConfig
from pellucid.decoding.chances import Drawing, Sampling
from pellucid.errors import DecodingError

__all__ = ["Wish"]


@dataclass(frozen=True, slots=True)
class Wish:
    """How translations are to be found.

    Attributes:
        settings: the run's, with those that the call gave in their places.
        n_best: candidates for each line.
        drawing: how candidates are drawn, or None where they are searched for.
    """

    settings: DecodingConfig
    n_best: int = 1
    drawing: Drawing | None = None

    @classmethod
    def of(
        cls,
        settings: DecodingConfig,
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        sampling: Mapping[str, Any] | Sampling | None = None,
        seed: int | None = None,
    ) -> "Wish":
        """The settings of a call, where None takes the run's.

        Raises:
            DecodingError: a setting cannot be met, or two do not go together.
            ConfigError: a setting is out of its range.
        """
        given = {"beam": beam, "length_penalty": length_penalty}
        settings = settings.replace(**{name: value for name, value in given.items() if value is not None})
        drawing = Drawing.of(sampling, seed)
        if drawing is not None:
            return cls(_drawn(settings, beam, n_best), n_best, drawing)
        if not 1 <= n_best <= settings.beam:
            raise DecodingError(
                f"n_best is {n_best}, but a beam of {settings.beam} gives 1 to {settings.beam} candidates; "
                "widen the beam, or ask for fewer"
            )
        return cls(settings, n_best)


def _drawn(settings: DecodingConfig, beam: int | None, n_best: int) -> DecodingConfig:
    """The settings where candidates are drawn: as many rows of a sentence stand side by side as a beam of n_best has."""
    if beam is not None:
        raise DecodingError(f"beam was given {beam} beside sampling, but a beam is not drawn; leave one of them out")
    if n_best < 1:
        raise DecodingError(f"n_best is {n_best}, but it counts candidates to draw; give 1 or more")
    return settings.replace(beam=n_best)

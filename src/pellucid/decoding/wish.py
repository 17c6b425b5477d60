"""What one call asks of a search: the run's settings, and what was asked for instead, checked before any work."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pellucid.config import DecodingConfig
from pellucid.decoding.chances import Drawing, Sampling
from pellucid.decoding.diverse import check_groups
from pellucid.decoding.numbers import require_whole
from pellucid.errors import DecodingError

__all__ = ["DIVERSITY", "Wish"]

DIVERSITY = 0.5
"""Nats by which groups are told apart, unless a call says otherwise."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How translations are to be found.

    Attributes:
        settings: the run's, with those that the call gave in their places.
        n_best: candidates for each line.
        drawing: how candidates are drawn, or None where they are searched for.
        groups: parts of a diverse beam.
        diversity: see `beam_search`.
        alternatives: how many tokens to tell at each place of a candidate; 0 tells nothing.
    """

    settings: DecodingConfig
    n_best: int = 1
    drawing: Drawing | None = None
    groups: int = 1
    diversity: float = DIVERSITY
    alternatives: int = 0

    @classmethod
    def of(
        cls,
        settings: DecodingConfig,
        changes: Mapping[str, Any],
        *,
        n_best: int = 1,
        sampling: Mapping[str, Any] | Sampling | None = None,
        seed: int | None = None,
        groups: int = 1,
        diversity: float | None = None,
        alternatives: int = 0,
    ) -> "Wish":
        """The settings of a call: the run's but for the changes, of which None changes nothing.

        Raises:
            DecodingError: a setting cannot be met, or two do not go together.
            ConfigError: a setting is out of its range.
        """
        given = {name: value for name, value in changes.items() if value is not None}
        settings = settings.replace(**given)
        drawing = Drawing.of(sampling, seed)
        require_whole("alternatives", alternatives, 0, "it counts tokens to tell")
        require_whole("n_best", n_best, 1, "it counts candidates")
        require_whole("groups", groups, 1, "it counts parts of the beam")
        if diversity is not None and groups == 1:
            raise DecodingError(
                f"diversity was given {diversity}, but it is between groups; add groups=2, or leave it out"
            )
        if drawing is not None:
            if groups != 1:
                raise DecodingError(f"groups was given {groups} beside sampling, but they divide a beam; leave one out")
            return cls(_drawn(settings, given.get("beam"), n_best), n_best, drawing, alternatives=alternatives)
        if not 1 <= n_best <= settings.beam:
            raise DecodingError(
                f"n_best is {n_best}, but a beam of {settings.beam} gives 1 to {settings.beam} candidates; "
                "widen the beam, or ask for fewer"
            )
        apart = DIVERSITY if diversity is None else diversity
        check_groups(settings.beam, groups, apart)
        return cls(settings, n_best, None, groups, apart, alternatives)

    def limit(self, source_length: int, most: int | None) -> int:
        """Tokens a translation may have: some times its source's, at most `max_length` and the model's own end."""
        limit = int(self.settings.length_ratio * source_length) + self.settings.length_extra
        return min(limit, self.settings.max_length or limit, most or limit)


def _drawn(settings: DecodingConfig, beam: int | None, n_best: int) -> DecodingConfig:
    """The settings where candidates are drawn: as many rows of a sentence stand side by side as a beam of n_best has."""
    if beam is not None:
        raise DecodingError(f"beam was given {beam} beside sampling, but a beam is not drawn; leave one of them out")
    return settings.replace(beam=n_best)

"""What a translation is: a line, and the ways that were found to say it."""

from dataclasses import asdict, dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

__all__ = ["Candidate", "Translation"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to translate a line.

    Attributes:
        text: the translation.
        tokens: its pieces.
        log_prob: sum of the tokens' log-probabilities in nats, the end mark counted.
        score: what candidates are ranked by: log_prob, lowered by a repetition penalty, over the length normaliser.
        finished: whether it ended by itself, rather than at the length limit.
        token_log_probs: where alternatives were asked for, the log-probability of each token, the end mark's last.
        alternatives: where they were asked for, the likeliest tokens at each place, each with its log-probability.
    """

    text: str
    tokens: tuple[str, ...]
    log_prob: float
    score: float
    finished: bool
    token_log_probs: tuple[float, ...] | None = None
    alternatives: tuple[tuple[tuple[str, float], ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Translation:
    """A line and its translations, best first; the first one's text, tokens and figures are its own attributes.

    Attributes:
        source: the line as it was given.
        source_tokens: its pieces, the end mark last.
        hypotheses: the candidates, best first; where they were drawn, in the order of the draws.
        attention: where asked for, cross-attention (layers, heads, target tokens and end mark, source tokens).
    """

    source: str
    source_tokens: tuple[str, ...]
    hypotheses: tuple[Candidate, ...]
    attention: Float[Tensor, "layers heads target source"] | None = None

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text

    @property
    def tokens(self) -> tuple[str, ...]:
        """The pieces of the best translation."""
        return self.hypotheses[0].tokens

    @property
    def log_prob(self) -> float:
        """The best one's log-probability in nats, the end mark counted."""
        return self.hypotheses[0].log_prob

    @property
    def score(self) -> float:
        """The best one's normalised log-probability."""
        return self.hypotheses[0].score

    def record(self) -> dict[str, Any]:
        """As one object for JSON: the line, the best translation's figures, and all candidates with theirs."""
        candidates = [
            {name: value for name, value in asdict(one).items() if value is not None} for one in self.hypotheses
        ]
        best = {name: candidates[0][name] for name in ("text", "score", "log_prob", "tokens")}
        return {"source": self.source, **best, "hypotheses": candidates}

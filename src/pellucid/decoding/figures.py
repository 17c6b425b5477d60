"""What a model thinks of each token of a translation, and what it would have said instead."""

from collections.abc import Sequence
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from pellucid.config import END_ID
from pellucid.decoding.hypotheses import Hypothesis
from pellucid.decoding.translation import Candidate
from pellucid.text.tokenizer import Tokenizer

__all__ = ["with_figures"]


def with_figures(
    candidates: Sequence[Candidate],
    hypotheses: Sequence[Hypothesis],
    log_probs: Float[Tensor, "candidates target vocabulary"],
    tokenizer: Tokenizer,
    alternatives: int,
) -> tuple[Candidate, ...]:
    """The candidates with the log-probability of each token, and the likeliest tokens at each place.

    Args:
        candidates: of one line.
        hypotheses: what each was made of.
        log_probs: the model's, at each place of each; row t stands for the token at place t.
        tokenizer: of the target language.
        alternatives: how many tokens at each place.
    """
    made, names = [], tokenizer.names()
    for candidate, hypothesis, rows in zip(candidates, hypotheses, log_probs, strict=True):
        said = [*hypothesis.ids, END_ID][: len(hypothesis.ids) + hypothesis.finished]
        own = tuple(rows[place, token].item() for place, token in enumerate(said))
        values, tokens = rows[: len(said)].topk(min(alternatives, rows.shape[1]), dim=-1)
        others = tuple(
            tuple(zip((names[token] for token in row), figures, strict=True))
            for row, figures in zip(tokens.tolist(), values.tolist(), strict=True)
        )
        made.append(replace(candidate, token_log_probs=own, alternatives=others))
    return tuple(made)

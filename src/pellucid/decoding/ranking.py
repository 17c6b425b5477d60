"""The likeliest tokens of a step's answer, which must be log-probabilities."""

import math
from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor

from pellucid.errors import DecodingError

__all__ = ["best_tokens", "check_best", "check_step"]

_ROUNDING = 1e-3  # how far above zero a log-probability may stand by rounding, as an average of models does


def check_step(log_probs: Tensor, rows: int, end_id: int) -> None:
    """Refuse what cannot be a step's answer for `rows` rows."""
    if not log_probs.is_floating_point() or log_probs.ndim != 2 or log_probs.shape[0] != rows:
        raise DecodingError(
            f"the step gave {log_probs.dtype} of shape {tuple(log_probs.shape)} for {rows} ids; "
            f"give log-probabilities as floats of shape ({rows}, vocabulary)"
        )
    if not 0 <= end_id < log_probs.shape[1]:
        raise DecodingError(
            f"end_id was given {end_id}, but the step knows {log_probs.shape[1]} tokens, so that no sentence could "
            "end; give the end mark's id in the step's vocabulary"
        )


def check_best(values: Sequence[float]) -> None:
    """Refuse rows whose highest value shows that they are no log-probabilities; a NaN counts as highest."""
    for row, value in enumerate(values):
        if math.isnan(value):
            raise DecodingError(
                f"the step gave log-probabilities that are NaN in row {row}, and a search cannot rank them; "
                "look for an overflow or a NaN weight in the model"
            )
        if value > _ROUNDING:
            raise DecodingError(
                f"the step gave {value:.4g} in row {row}, but a log-probability is at most 0; "
                "apply log_softmax to the model's logits"
            )


def best_tokens(
    log_probs: Float[Tensor, "rows vocabulary"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """The `count` likeliest tokens of each row, or all, likeliest first and of equals the lowest id first.

    `topk` alone keeps any of several equals. So it is asked for one more: only a row with equals on both sides of the
    cut needs a full sort. `max` takes the first of equals.
    """
    if count == 1:
        return log_probs.max(dim=-1, keepdim=True)
    values, tokens = log_probs.topk(min(count + 1, log_probs.shape[1]), dim=-1)
    if values.shape[1] > count:
        torn = (values[:, -2] == values[:, -1]) & (values[:, -1] > -math.inf)
        rows = torn.nonzero().flatten()
        values, tokens = values[:, :count], tokens[:, :count]
        if len(rows):
            ordered, order = log_probs[rows].sort(dim=-1, descending=True, stable=True)
            values = values.index_copy(0, rows, ordered[:, :count])
            tokens = tokens.index_copy(0, rows, order[:, :count])
    tokens, order = tokens.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, tokens.gather(1, order)

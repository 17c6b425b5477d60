"""Hands out a sentence while it is still being chosen: token by token, and as text that no later token can change."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from pellucid.decoding.chances import Sampling, own_seed
from pellucid.decoding.rules import Rules, rules_of
from pellucid.decoding.sampling import Draw, grow
from pellucid.decoding.search import State, Step
from pellucid.errors import DecodingError
from pellucid.text.tokenizer import Tokenizer

__all__ = ["settled_text", "tokens_as_chosen"]

S = TypeVar("S", bound=State)


def tokens_as_chosen(
    step: Step[S],
    state: S,
    *,
    start_id: int,
    end_id: int,
    max_length: int,
    sampling: Sampling,
    seed: int,
    rules: Rules | None = None,
) -> Iterator[int]:
    """The tokens of one sentence, each as soon as it is chosen; the end mark only ends them.

    They are those of `greedy_search` at a temperature of 0, else those that `sample` draws first of the one sentence
    that is given this `seed` in a list.

    Raises:
        DecodingError: the step gives something else than log-probabilities, or the rules cannot be kept; phrases cannot
            be forced into what is not searched.

    >>> import torch
    >>> class Nothing:
    ...     def select(self, rows):
    ...         return self
    >>> def step(ids, state):  # token 1 is likeliest after 0, and the end mark 2 after 1
    ...     return torch.tensor([[0.1, 0.6, 0.3], [0.2, 0.3, 0.5]]).log()[ids], state
    >>> greedy = Sampling(temperature=0)
    >>> list(tokens_as_chosen(step, Nothing(), start_id=0, end_id=2, max_length=5, sampling=greedy, seed=1))
    [1]
    """
    [kept] = rules_of(1, rules, [max_length], end_id)
    if kept is not None and kept.forced:
        raise DecodingError("phrases cannot be forced into what is said token by token; translate with a beam")
    draw = Draw(0, max_length, own_seed(seed, 0), kept)
    given = 0
    for _ in grow(step, state, [draw], batch=1, start_id=start_id, end_id=end_id, sampling=sampling):
        yield from draw.ids[given:]
        given = len(draw.ids)


def settled_text(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """The text of tokens in pieces, none empty, each as early as no later token can change it.

    Together they are `tokenizer.decode` of all tokens. Bytes at the end that spell no character yet read as U+FFFD;
    the next ones may complete them, so that they wait.
    """
    ids: list[int] = []
    said = 0
    for token in tokens:
        ids.append(token)
        settled = tokenizer.decode(ids).rstrip("\ufffd")
        if len(settled) > said:
            yield settled[said:]
            said = len(settled)
    if rest := tokenizer.decode(ids)[said:]:
        yield rest

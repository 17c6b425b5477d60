"""Why steps drift from the whole: the likely slip, by what a step sees and by what it does when samples change places."""

from typing import Any

from torch import Tensor

from pellucid.check.courses import Course, Walks

__all__ = ["of_chunks", "of_samples", "of_steps"]

FIRST = (
    "the first call, which has no cache yet, differs already: at once, positions depend on later ones or on how many there "
    "are (check.causality says where), or the two calls compute different things"
)
POSITIONS = (
    "positions begin anew at each step, or elsewhere than they should: the first call is right and later ones see the "
    "whole past, but not from their own places; begin positions at the number of positions in the cache"
)
UNREAD = (
    "cache not read: what a step gives does not depend on what came before it; put the cached keys and values before the "
    "new ones, torch.cat([past, new], dim=2), in every layer, and hand the result back"
)
OVERWRITTEN = (
    "cache overwritten: a step sees only the newest of its past; append new keys and values to the cached ones, and hand "
    "back all of them, and see that no mask hides the oldest"
)
CORNER = (
    "causal mask aligned to the wrong corner: a cached query sees the first key and not the later ones; is_causal=True "
    "puts the first query at the first key, so give it only where there is no cache: one query needs no mask, several need "
    "torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)"
)
HIDDEN = (
    "the mask of a step hides a part of the past that is seen at once; a query after k cached keys stands at position k"
)
SHOWN = (
    "a step sees more of the past than is seen at once: a window, say, is not applied to cached keys; give each step the "
    "row of the mask at which its query stands"
)
SOURCE_UNREAD = "memory not read: a step with a cache does not look at the source; keep the cross-attention's keys, too"
LATE = (
    "steps are right up to position {first}: from there on the cache loses something, or positions go wrong; look for a "
    "window, a size, or a buffer of {first} positions that is full"
)
CHUNK = (
    "mask within a chunk: several new queries see each other's future; give them "
    "torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) where there is a cache, too, or chunks=False where "
    "the model is only ever given one id at a time"
)
CHUNK_POSITIONS = (
    "positions within a chunk: each of several new ids stands at a place of its own, the number of cached positions, and "
    "one more, and so on; chunks=False where the model is only ever given one id at a time"
)
SAMPLES = (
    "cache not reordered: once samples have changed places, each goes on from another's past; take the rows of keys and "
    "values in every layer, index_select(0, rows), the cross-attention's among them"
)
MEMORY = (
    "memory not reordered: once samples have changed places, each reads another's source; take the rows of the memory, of "
    "its lengths, and of the cross-attention's cached keys and values"
)
MOST = 8
"""Positions of the past that are looked at."""


def of_steps(walks: Walks, steps: Course, inputs: tuple[Any, ...], wrong: list[int]) -> str:
    """What to do about steps of one position that are wrong at some positions."""
    first = wrong[0]
    if first == 0:
        return FIRST
    last = inputs[-1].shape[1] - 1
    seen, meant = _seen(walks, steps, inputs, last)
    if len(inputs) > 1 and not _source_seen(walks, steps, inputs, last):
        return SOURCE_UNREAD
    lacking = meant - seen
    if lacking:
        if not seen:
            return UNREAD
        if seen == {0}:
            return CORNER
        return OVERWRITTEN if max(lacking) < min(seen) else HIDDEN
    if seen - meant:
        return SHOWN
    return POSITIONS if first == 1 else LATE.format(first=first)


def of_chunks(walks: Walks, chunks: Course, inputs: tuple[Any, ...], wrong: list[int]) -> str:
    """What to do about steps of several positions that are wrong, where those of one are right."""
    past = chunks.sizes[0]
    if wrong[0] < past:
        return FIRST
    if _moving(walks, chunks, inputs, {past + 1}, past):
        return CHUNK
    seen, meant = _seen(walks, chunks, inputs, past + 1)
    return CORNER if meant - seen else CHUNK_POSITIONS


def of_samples(walks: Walks, samples: Course, inputs: tuple[Any, ...]) -> str:
    """What to do about steps that are wrong once samples have changed places."""
    if len(inputs) == 1:
        return SAMPLES
    sources = [one[:1].expand_as(one) if isinstance(one, Tensor) else one for one in inputs[:-1]]
    alike = (*sources, inputs[-1])  # of one source each, so that only the past can be another's
    wrong = walks.differ(walks.along(samples, *alike), samples.of(walks.whole(*alike)))
    return SAMPLES if wrong.any() else MEMORY


def _seen(walks: Walks, course: Course, inputs: tuple[Any, ...], at: int) -> tuple[set[int], set[int]]:
    """Which earlier positions the output at one depends on along a course, and at once."""
    some = {round(place * (at - 1) / (MOST - 1)) for place in range(MOST)} if at > MOST else set(range(at))
    return _moving(walks, course, inputs, some, at), _moving(walks, None, inputs, some, at)


def _moving(walks: Walks, course: Course | None, inputs: tuple[Any, ...], places: set[int], at: int) -> set[int]:
    """Of some positions of the target, those at which another content moves the output at one."""
    base, found = _made(walks, course, inputs), set()
    for place in places:
        target = inputs[-1].clone()
        target[:, place] = _other(target, place)
        if walks.differ(_made(walks, course, (*inputs[:-1], target)), base)[:, at].any():
            found.add(place)
    return found


def _source_seen(walks: Walks, course: Course, inputs: tuple[Any, ...], at: int) -> bool:
    """Whether the output at a position depends on the source, or need not."""
    turned = [one.roll(1, 0).flip(1) if isinstance(one, Tensor) and one.dim() > 1 else one for one in inputs[:-1]]
    changed = (*turned, inputs[-1])
    moved = [walks.differ(_made(walks, how, changed), _made(walks, how, inputs))[:, at] for how in (course, None)]
    return bool(moved[0].any() or not moved[1].any())


def _made(walks: Walks, course: Course | None, inputs: tuple[Any, ...]) -> Tensor:
    return walks.whole(*inputs) if course is None else walks.along(course, *inputs)


def _other(target: Tensor, place: int) -> Tensor:
    """Another content for a position: ids that stand elsewhere in the target, or other numbers."""
    old = target[:, place]
    if target.is_floating_point():
        return old + 1 + old.abs()
    ids = sorted(set(target.flatten().tolist()))
    after = dict(zip(ids, [*ids[1:], ids[0] if len(ids) > 1 else abs(ids[0] - 1)], strict=True))
    return old.new_tensor([after[one] for one in old.tolist()])

"""Random masks for the tests of laws: expressions as they are written, and the names that they are written in.

An expression is drawn as it is written and built inside the test, since the checks of types that run while a mask is
built use random numbers of their own, which Hypothesis cannot have inside a strategy.
"""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from pellucid.masks import (
    Causal,
    Chunked,
    Dense,
    Dilated,
    Full,
    Global,
    Heads,
    Mask,
    Padding,
    Predicate,
    Prefix,
    Segments,
    Window,
)

__all__ = ["BATCH", "EXPRESSIONS", "HEADS", "SHAPES", "SHORT", "WRITTEN", "Shape", "built", "table"]

BATCH, HEADS = 2, 3  # wherever a mask tells samples or heads apart
MOST = 7  # queries or keys
LAST = 9  # the position of the first query, at most
LENGTH = 17  # queries that the masks of limited size know: more than LAST + MOST

Shape = tuple[int, int, int]  # queries, keys, first_query


def cells(seed: int, *shape: int) -> Tensor:
    """Random cells, the same for the same seed."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5


def striped(b: Any, h: Any, q: Any, k: Any) -> Any:
    """A predicate of positions alone."""
    return (q + 2 * k) % 3 == 0


def by_sample(b: Any, h: Any, q: Any, k: Any) -> Any:
    """A predicate that tells samples apart and looks at no query."""
    return k < 2 + 3 * b


def by_head(b: Any, h: Any, q: Any, k: Any) -> Any:
    """A predicate that tells heads apart."""
    return q - k >= h


NAMES: dict[str, Any] = {
    "__builtins__": {},
    **{
        kind.__name__: kind
        for kind in (Full, Causal, Window, Padding, Prefix, Segments, Chunked, Dilated, Global, Heads, Dense, Predicate)
    },
    **{function.__name__: function for function in (cells, striped, by_sample, by_head)},
}

few, small = st.integers(0, 9), st.integers(0, 4)
# One strategy of text each, for the kinds of which an expression is made.
POSITIONS = st.one_of(
    st.sampled_from(["Causal()", "Full()"]),
    st.builds("Window({}, {})".format, small, small),
    st.builds("Chunked({})".format, st.integers(1, 6)),
    st.builds("Dilated({})".format, st.integers(1, 4)),
    st.builds("Global({})".format, st.one_of(few, st.lists(few, max_size=3))),
    st.builds("Prefix({})".format, few),
)
SAMPLES = st.one_of(
    st.builds("Padding(({}, {}))".format, few, few),
    st.builds("Prefix(({}, {}))".format, few, few),
    # The first sample holds two documents, and the second three.
    st.builds(
        f"Segments.from_lengths((({{0}}, {LENGTH} - {{0}}), ({{1}}, {{2}}, {LENGTH} - {{1}} - {{2}})))".format,
        few,
        small,
        small,
    ),
)
PLAIN = st.one_of(POSITIONS, SAMPLES)
INVERTIBLE = st.one_of(PLAIN, st.builds("~{}".format, PLAIN))
PER_HEAD = st.builds("Heads(({}, {}, {}))".format, INVERTIBLE, INVERTIBLE, INVERTIBLE)
SIZES = ["17, 7", "2, 17, 7", "2, 3, 17, 7", "1, 3, 17, 7", "2, 1, 1, 7", "1, 1, 17, 1", "2, 3, 1, 1"]
OPAQUE = st.one_of(
    st.builds("Dense(cells({}, {}))".format, few, st.sampled_from(SIZES)),
    st.sampled_from(["Predicate(striped)", "Predicate(by_sample, batch=2)", "Predicate(by_head, heads=3)"]),
)


def joined(kinds: st.SearchStrategy[str], most: int = 5) -> st.SearchStrategy[str]:
    """Expressions of these kinds, and at most so many of them."""
    return st.recursive(
        kinds,
        lambda parts: st.one_of(
            st.builds("~{}".format, parts), st.builds("({} {} {})".format, parts, st.sampled_from("&|-^"), parts)
        ),
        max_leaves=most,
    )


WRITTEN = joined(st.one_of(POSITIONS, SAMPLES, PER_HEAD))
"""Expressions that a mask's repr rebuilds: all kinds but Dense and Predicate."""
EXPRESSIONS = joined(st.one_of(POSITIONS, SAMPLES, PER_HEAD, OPAQUE))
"""Expressions of all kinds."""
SHORT = joined(st.one_of(POSITIONS, SAMPLES, PER_HEAD, OPAQUE), most=2)
"""Expressions of all kinds, for laws about several of them."""
SHAPES = st.tuples(st.integers(1, MOST), st.integers(1, MOST), st.integers(0, LAST))


def built(expression: str) -> Mask:
    """The mask that is written there."""
    mask = eval(expression, NAMES)  # noqa: S307 - with these names only
    assert isinstance(mask, Mask)
    return mask


def table(mask: Mask, shape: Shape) -> Tensor:
    """The mask for every sample and head, whether or not it tells them apart."""
    return mask.dense(*shape).expand(BATCH, HEADS, *shape[:2])

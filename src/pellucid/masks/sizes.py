"""Sizes that a mask can be asked for, and the strips of rows in which a large one is looked at."""

from collections.abc import Callable, Iterator

from pellucid.errors import MaskError

__all__ = ["CELLS", "check_size", "row_strips"]

CELLS = 2**22  # that are looked at together where a mask is counted


def check_size(name: Callable[[], str], known: tuple[int | None, int | None], size: tuple[int, int, int]) -> None:
    """Refuse sizes that no mask has, and those past what one knows.

    Args:
        name: the mask in words, asked for only where it is needed.
        known: queries and keys that it speaks of, None where it speaks of all.
        size: queries, keys and the position of the first query.

    Raises:
        MaskError: a size is negative, or too large for this mask.
    """
    queries, keys, first_query = size
    if min(size) < 0:
        raise MaskError(
            f"a mask was asked for {queries} queries from position {first_query} and {keys} keys, "
            "but sizes and positions are never negative; give counts from 0 up"
        )
    for what, limit, asked in zip(("queries", "keys"), known, (first_query + queries, keys), strict=True):
        if limit is not None and asked > limit:
            raise MaskError(
                f"{name()} knows {limit} {what} and was asked for {asked}; ask for fewer, or make it from more"
            )


def row_strips(cells_a_row: int, queries: int, first_query: int) -> Iterator[tuple[int, int]]:
    """How many rows to look at together, and the position of the first of them; one strip of none, where there are none.

    >>> list(row_strips(CELLS // 2, 5, 7))
    [(2, 7), (2, 9), (1, 11)]
    """
    rows = max(1, CELLS // max(1, cells_a_row))
    for row in range(0, queries, rows) or (0,):
        yield min(rows, queries - row), first_query + row

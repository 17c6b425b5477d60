"""The tree that errors.py draws at its top is the tree it builds."""

import inspect
from collections.abc import Iterator

import pytest

from pellucid import errors


def tree(error: type[errors.PellucidError], depth: int = 0) -> Iterator[tuple[int, str, str]]:
    """Depth, name and description of an error and all below it, in the order they are defined."""
    yield depth, error.__name__, inspect.getdoc(error) or ""
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child, depth + 1)


def drawn() -> Iterator[tuple[int, str, str]]:
    """Depth, name and description of each line of the drawing."""
    for line in (errors.__doc__ or "").split("\n"):
        branch, _, rest = line.partition("─ ")
        if rest:
            name, _, description = rest.partition(" ")
            yield (len(branch) + 1) // 4, name, description.strip()


def test_the_drawing_is_the_tree() -> None:
    built = list(tree(errors.PellucidError))[1:]
    lines = list(drawn())
    assert len(lines) >= 11
    assert [(depth, name) for depth, name, _ in built] == [(depth, name) for depth, name, _ in lines]
    for (_, name, said), (_, _, description) in zip(built, lines, strict=True):
        assert said[0].lower() + said[1:].rstrip(".").partition(";")[0] == description, name


def test_a_failed_check_is_an_assertion_so_that_pytest_shows_it_as_a_failure() -> None:
    with pytest.raises(AssertionError, match=r"^the future leaks$"):
        raise errors.CheckFailed("the future leaks")


def test_no_error_is_one_that_a_caller_catches_for_another_reason() -> None:
    for name, error in vars(errors).items():
        if inspect.isclass(error) and name != "CheckFailed":
            assert not issubclass(error, ValueError | TypeError | OSError | LookupError | AssertionError), name

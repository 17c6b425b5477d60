"""The checks of shapes and types are on in these tests: a wrong shape, a wrong type and a wrong result all raise."""

from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
import torch
from jaxtyping import Float, Int, TypeCheckError, jaxtyped
from torch import Tensor

from pellucid.config import RunConfig
from pellucid.model import attend
from shape_checks import checked

B, S, T, H, DH = 2, 5, 7, 3, 11

check: Callable[[Any], Any] = jaxtyped(typechecker=checked)  # what the import hook writes above each function


def test_a_function_of_the_package_refuses_a_missing_axis() -> None:
    query, key, value = torch.randn(3, B, H, T, DH)
    assert attend(query, key, value).shape == (B, H, T, DH)
    with pytest.raises(TypeCheckError, match="parameter 'key'"):
        attend(query, key[0], value)


def test_a_classmethod_of_the_settings_refuses_a_wrong_type() -> None:
    assert RunConfig.from_toml("").training.steps > 0
    with pytest.raises(TypeCheckError, match="text"):
        RunConfig.from_toml(3)  # type: ignore[arg-type]


def test_one_letter_is_one_size() -> None:
    @check
    def add(left: Float[Tensor, "batch width"], right: Float[Tensor, "batch width"]) -> Float[Tensor, "batch width"]:
        return left + right

    assert add(torch.ones(B, S), torch.ones(B, S)).shape == (B, S)
    with pytest.raises(TypeCheckError, match="right"):
        add(torch.ones(B, S), torch.ones(1, S))


def test_a_result_is_checked() -> None:
    @check
    def lengths() -> Int[Tensor, " batch"]:
        return torch.ones(B)

    with pytest.raises(TypeCheckError, match="return"):
        lengths()


def test_self_and_generators_are_let_through() -> None:
    class Count:
        @check
        def up_to(self, end: int, other: Self | None = None) -> tuple[Self, int]:
            return other or self, end

        @check
        def each(self, end: int) -> Iterator[int]:
            yield from range(end)

    one = Count()
    assert one.up_to(S, one) == (one, S)
    assert list(one.each(3)) == [0, 1, 2]
    with pytest.raises(TypeCheckError, match="end"):
        one.up_to("5")
    with pytest.raises(TypeCheckError, match="end"):
        next(one.each("5"))

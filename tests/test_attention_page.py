"""docs/attention.md is what its writer writes, and what its table promises is done."""

from types import ModuleType

import pytest
import torch

from pages import DOCS, writer_of
from pellucid.model import attend
from pellucid.model.kernels import flex


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """docs/write_attention.py, which is no part of the package."""
    return writer_of("attention")


def test_the_page_is_up_to_date(writer: ModuleType) -> None:
    written = (DOCS / "attention.md").read_text(encoding="utf-8")
    assert written == writer.written(), "the code says otherwise: python docs/write_attention.py"


def test_what_the_table_promises_is_done(writer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    # Compiling would take a quarter of a minute for each.
    monkeypatch.setattr(flex, "compiles", lambda _: False)
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    done = 0
    for feature in writer.features():
        call = feature.call
        wanted = attend(call.query, call.key, call.value, call.mask, call.bias, call.first_query, "formula")
        for kernel in writer.KERNELS:
            if call.dropout:
                continue  # what is dropped is drawn; test_kernels.py looks at the shares
            found = attend(call.query, call.key, call.value, call.mask, call.bias, call.first_query, kernel)
            low = call.query.dtype in (torch.bfloat16, torch.float16)
            torch.testing.assert_close(
                found, wanted, rtol=0, atol=3e-2 if low else 1e-6, msg=f"{feature.name} {kernel}"
            )
            done += 1
    assert done == 14 * len(writer.KERNELS)

"""A device is found by its name, and one with too little memory says so in one sentence."""

import pytest
import torch

from pellucid.device import in_memory, pick_device
from pellucid.errors import ConfigError, DeviceError

WITHOUT_END = 2**60  # numbers: more than any machine's memory


@pytest.mark.parametrize("name", ["cuda:99", "abacus", "", "meta", "cpu:x"])
def test_a_device_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the device '{name}' is not on this machine; take 'cpu' or 'auto'"):
        pick_device(name)


def test_a_device_is_picked() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_gpu_is_looked_for_without_taking_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: pytest.fail("a tensor was made"))
    assert [pick_device(name) for name in ("auto", "cuda", "cuda:1")] == [
        torch.device("cuda"),
        torch.device("cuda"),
        torch.device("cuda:1"),
    ]
    with pytest.raises(ConfigError, match="'cuda:2' is not on this machine"):
        pick_device("cuda:2")


def test_memory_that_is_not_there_is_one_sentence() -> None:
    wanted = r"^training needs more memory than this device has free; buy some$"
    with pytest.raises(DeviceError, match=wanted), in_memory("training", "buy some"):
        torch.empty(WITHOUT_END)
    with pytest.raises(DeviceError, match=wanted), in_memory("training", "buy some"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")


def test_other_faults_pass_as_they_are() -> None:
    with pytest.raises(RuntimeError, match=r"^shapes"), in_memory("training", "buy some"):
        raise RuntimeError("shapes cannot be multiplied")

"""What every test has: shapes and types checked, the same random numbers, one thread, and laws tried alike."""

import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook

# Before the first import of pellucid: from here on, each of its functions checks the shapes and types it states. Faults are
# looked for without, since decorating the whole package takes longer than the test that finds one of them.
if "PELLUCID_TESTS_UNCHECKED" not in os.environ:
    install_import_hook("pellucid", "shape_checks.checked")


class TorchRandom:
    """Torch's generator as Hypothesis wants it, so that each example starts from the same random numbers."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


TORCH_RANDOM = TorchRandom()  # Hypothesis keeps no reference of its own
hypothesis.register_random(TORCH_RANDOM)

# A machine of CI is slow at times, so no example has a deadline; there, too, a failure must come again when rerun.
SLOW_MACHINES: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("here", max_examples=50, **SLOW_MACHINES)
hypothesis.settings.register_profile("ci", max_examples=50, derandomize=True, print_blob=True, **SLOW_MACHINES)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")

torch.set_num_threads(1)  # sums come out the same everywhere, and workers do not queue for the same cores


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Every test starts from the same seed, whatever ran before it."""
    torch.manual_seed(1)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Calls as users make them, without the tests' own check of types, which would refuse before Pellucid does."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def traceable(unchecked: None) -> None:
    """Calls that torch traces and compiles, which it cannot do with the tests' own check of types."""
    torch._dynamo.reset()

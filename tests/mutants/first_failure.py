"""A plugin of pytest for runs that are meant to fail: the first example that fails will do, however long it is."""

import hypothesis


def pytest_configure() -> None:
    """Leave out Hypothesis's search for a shorter example, which takes minutes."""
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("first failure", phases=phases, parent=hypothesis.settings.default)
    hypothesis.settings.load_profile("first failure")

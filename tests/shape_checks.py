"""What the tests' import hook wraps around each function of Pellucid: beartype, which is told to let `Self` be."""

from collections.abc import Callable
from typing import Annotated, Any, Self, cast

from beartype import BeartypeConf, FrozenDict, beartype
from beartype.vale import Is

# The hook decorates methods before their class exists, where beartype cannot know what Self is; mypy checks it.
ANYTHING = Annotated[object, Is[lambda value: True]]
CONFIGURATION = BeartypeConf(hint_overrides=FrozenDict({cast("Any", Self): ANYTHING}))


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, checking its arguments and its result at every call."""
    return beartype(conf=CONFIGURATION)(function)

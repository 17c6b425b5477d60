"""What a group of settings is: keyword-only, immutable, checked, and helpful about slips."""

import difflib
import tomllib
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pellucid.errors import ConfigError

__all__ = ["Count", "Finite", "NotNegative", "Positive", "Probability", "Settings", "known", "set_one"]

Count = Annotated[int, Field(ge=1, lt=2**31)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Settings(BaseModel):
    """A group of settings; a slip raises one sentence that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())
    section: ClassVar[str]

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(self._explain(error)) from None

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: Any) -> Any:
        """Refuse true where a number belongs: pydantic would take it for 1."""
        field = cls.model_fields.get(info.field_name or "")
        if isinstance(value, bool) and field is not None and field.annotation is not bool:
            raise ValueError("it should be a number or a word, not a truth value")
        return value

    def replace(self, **changes: Any) -> Self:
        """The same settings with some of them changed, checked again.

        >>> from pellucid.config import DecodingConfig
        >>> DecodingConfig().replace(beam=8).beam
        8
        """
        return type(self)(**{**self.model_dump(), **changes})

    @classmethod
    def _explain(cls, error: ValidationError) -> str:
        """The first fault, as one sentence: what was given, what was needed, what to do."""
        fault = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            return f"{cls.section}: unknown setting '{name}'; {known(name, cls.model_fields)}"
        message = fault["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        if not name:
            return f"{cls.section}: {message}"
        return f"{cls.section}: '{name}' was given {fault['input']!r}, but {message.replace('input', 'it')}"


def known(name: str, names: Iterable[str]) -> str:
    """Advice on a name that is not known: the nearest that is, or all of them.

    >>> known("d_modle", ["d_model", "dropout"])
    "did you mean 'd_model'?"
    """
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(names)}"


def set_one(table: dict[str, Any], override: str) -> None:
    """Set one `section.name=value` in a table of settings; what is not TOML is a string.

    Raises:
        ConfigError: it is not of that form, or its section is not one.
    """
    name, equals, value = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and key):
        raise ConfigError(f"--set was given '{override}', but it takes section.name=value, as in training.steps=5000")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    group = table.setdefault(section, {})
    if not isinstance(group, dict):
        raise ConfigError(f"settings: '{section}' was given {group!r}, but it is a section; write [{section}]")
    group[key] = parsed

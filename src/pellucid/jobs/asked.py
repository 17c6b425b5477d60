"""What a command line asks of translations as NAME=VALUE: rules, and settings of the search."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pellucid.config.settings import known
from pellucid.decoding import Wording
from pellucid.errors import DecodingError, TextError
from pellucid.text.corpus import read_lines

__all__ = ["options_from", "rules_from", "rules_in"]

TEXTS, PHRASES = ("prefix",), ("forced", "forbidden")
OPTIONS = (
    "max_length", "length_ratio", "length_extra", "length_rule", "too_long", "groups", "diversity", "alternatives"
)  # fmt: skip
FRACTIONS = ("length_ratio", "diversity")


def rules_from(given: Sequence[str]) -> dict[str, Any]:
    """Rules for all lines; phrases may be given several times.

    Raises:
        DecodingError: one is not of that form, or unknown.

    >>> rules_from(["prefix=Das", "forced=Katze", "forced=Hund", "min_length=4"])
    {'prefix': 'Das', 'forced': ['Katze', 'Hund'], 'min_length': 4}
    """
    names = [field.name for field in fields(Wording)]
    rules: dict[str, Any] = {}
    for one in given:
        name, value = _pair("--rule", one, names, "prefix=Das")
        if not value.strip():
            raise DecodingError(f"--rule was given '{one}', which says nothing; write {name}=VALUE, or leave it out")
        if name in PHRASES:
            rules.setdefault(name, []).append(value)
        else:
            _once("--rule", name, rules)
            rules[name] = value if name in TEXTS else _number(name, value)
    return rules


def options_from(given: Sequence[str]) -> dict[str, Any]:
    """Settings of the search for this call.

    Raises:
        DecodingError: one is not of that form, or unknown.

    >>> options_from(["max_length=90", "length_rule=power"])
    {'max_length': 90, 'length_rule': 'power'}
    """
    options: dict[str, Any] = {}
    for one in given:
        name, value = _pair("--set", one, OPTIONS, "max_length=90")
        _once("--set", name, options)
        options[name] = value if name in ("length_rule", "too_long") else _number(name, value)
        if name in FRACTIONS:
            options[name] = float(options[name])
    return options


def _once(option: str, name: str, given: Mapping[str, Any]) -> None:
    if name in given:
        raise DecodingError(f"{option} was given {name} twice; give it once")


def _pair(option: str, given: str, names: Sequence[str], example: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals:
        raise DecodingError(f"{option} was given '{given}', but it takes NAME=VALUE, as in {option} {example}")
    if name.strip() not in names:
        raise DecodingError(f"{option} was given the unknown '{name.strip()}'; {known(name.strip(), names)}")
    return name.strip(), value


def _number(name: str, value: str) -> int | float:
    try:
        number = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise DecodingError(f"{name} was given '{value}', but it is a number; give one")
    return number


def rules_in(file: Path) -> Iterator[Mapping[str, Any]]:
    """The rules of each line, from a file of JSON objects; a blank line asks for nothing.

    Raises:
        TextError: a line is no JSON object; it is named.
    """
    for number, line in enumerate(read_lines(file), start=1):
        try:
            rules = json.loads(line, object_pairs_hook=_object) if line.strip() else {}
        except (ValueError, RecursionError, DecodingError) as error:  # too many digits are a ValueError
            told = getattr(error, "msg", error)
            raise TextError(f'{file}, line {number}: no JSON ({told}); write {{"prefix": "Das"}}') from None
        if not isinstance(rules, dict):
            raise TextError(f'{file}, line {number}: {line[:40]} is no JSON object; write {{"prefix": "Das"}}')
        yield rules


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which no name stands twice."""
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DecodingError(f"'{twice}' stands there twice")
    return dict(pairs)

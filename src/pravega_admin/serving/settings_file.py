"""Reads the settings file, and says where it is wrong.

Owns: its form, which is TOML with the tables ``segment_store`` and ``controller``, whose keys are
the settings that ``declarations`` finds; those that have an option are refused there.

Without a file, no server's configuration is imported, because the import takes long.

Invariants:
1. When the file has an unknown key or a wrong value, the command ends before it starts a process.
   The message has the file, the line, and a known name that is similar. Held by
   ``test_a_settings_file_that_makes_no_sense_is_refused``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

from pravega_admin.errors import ConfigurationError
from pravega_admin.serving.declarations import (
    TABLES,
    configuration_of,
    declarations_of,
    section_of,
)

_HEADER = re.compile(r"\s*\[+([^\[\]]+)\]")
_BOUND = re.compile(r"Expected `\w+` (>=|>|<=) (\S+)")
_WORDS = {">=": "at least", ">": "more than", "<=": "at most"}
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")

Keys: TypeAlias = Sequence[str]


def read_settings(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the tables of a settings file; ``ConfigurationError`` if it has anything else."""
    if path is None:
        return {}
    import tomllib

    try:
        text = path.read_text()
        tables = tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    for problem in _find_problems(tables):
        line = find_line(text, problem.keys)
        raise ConfigurationError(f"{path}, line {line}: {problem.sentence}")
    return tables


def find_line(text: str, keys: Keys) -> int:
    """Return the number of the line of a TOML text that sets what ``keys`` lead to."""
    best, line_of_best = 0, 1
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            found = table = _split_keys(header[1])
        elif key := _KEY.match(line):
            found = [*table, *_split_keys(key[1])]
        else:
            continue
        if len(found) > best and found == list(keys[: len(found)]):
            best, line_of_best = len(found), number
    return line_of_best


def suggest(name: str, known: Sequence[str]) -> str:
    """Return words that name the most similar known name; empty if none is similar."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


@dataclass(frozen=True, slots=True)
class _Problem:
    """A fault of the value that ``keys`` lead to."""

    keys: Keys
    sentence: str


def _find_problems(tables: Mapping[str, Any]) -> Iterator[_Problem]:
    for name, table in tables.items():
        if name not in TABLES or not isinstance(table, dict):
            known = " and ".join(TABLES)
            hint = "" if name in TABLES else suggest(name, TABLES)
            yield _Problem([name], f"{name!r}: only tables {known} are known{hint}")
            continue
        for each in declarations_of(name):
            if each.option is not None and _has(table, each.keys):
                sentence = f"it sets {'.'.join(each.keys)}, which is an option of the command"
                yield _Problem([name, *each.keys], sentence)
        yield from _find_wrong_keys([name], table, configuration_of(name))


def _find_wrong_keys(
    keys: list[str], values: Mapping[str, Any], configuration: type
) -> Iterator[_Problem]:
    import msgspec

    from pravega_admin.serving.serve import decode_path

    # The types have the bounds of their settings.
    hints = get_type_hints(configuration, include_extras=True)
    for name, value in values.items():
        where = [*keys, name]
        if name not in hints:
            sentence = f"[{'.'.join(keys)}] has no setting {name}"
            yield _Problem(where, sentence + _suggest_setting(name, configuration, keys[0]))
            continue
        section = section_of(get_type_hints(configuration)[name])
        if section is not None and isinstance(value, dict):
            yield from _find_wrong_keys(where, value, section)
        try:
            msgspec.convert(value, hints[name], dec_hook=decode_path)
        except (msgspec.ValidationError, ValueError) as error:
            # A required field may be missing in the file, because an option of the command may set
            # it.
            if "missing required field" not in str(error):
                sentence, _, inner = str(error).partition(" - at `$")
                # A place within a list has no line of its own.
                inner_keys = re.findall(r"\.(\w+)", inner)
                named = ".".join([*where[1:], *inner_keys])
                yield _Problem([*where, *inner_keys], _say_bound(named, sentence))


def _say_bound(name: str, sentence: str) -> str:
    """Return the sentence about a wrong value with the setting's name, a bound in plain words."""
    if bound := _BOUND.fullmatch(sentence):
        return f"{name} has to be {_WORDS[bound[1]]} {bound[2].removesuffix('.0')}"
    return f"{name}: {sentence}"


def _suggest_setting(name: str, configuration: type, table: str) -> str:
    """Return words about the setting that was probably meant, here or in another section."""
    if near := suggest(name, [*get_type_hints(configuration)]):
        return near
    for each in declarations_of(table):
        if each.name == name:
            return f"; [{each.path.rpartition('.')[0]}] has it"
    return ""


def _has(table: Mapping[str, Any], keys: Keys) -> bool:
    """Return whether a table has a value where the keys lead."""
    value: Any = table
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def _split_keys(text: str) -> list[str]:
    return [each.strip().strip("\"'") for each in re.findall(r"\"[^\"]*\"|'[^']*'|[^.]+", text)]

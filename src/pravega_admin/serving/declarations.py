"""The settings as their servers declare them: the fields of the two configurations.

Owns: the reading of these fields. The checks of the settings file, options of the command line, the
original's names and the tables of the guides are made of what this module returns, so that a
setting is declared in one place.

A field has a type, a default and a docstring. What else is known of it is in the ``Meta`` of its
type: bounds (``ge``, ``gt`` and ``le``), and in ``extra`` the values of ``Declaration`` of the same
names.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import pairwise
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

TABLES: Final = ("segment_store", "controller")
"""The tables of a settings file."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """A setting."""

    path: str
    """Its table, its sections and its name, with dots between."""
    kind: Any
    default: Any
    """``inspect.Parameter.empty`` if it has none."""
    meaning: str
    """The sentence about it for users: its docstring."""
    least: float | None = None
    above: float | None = None
    """The value that it has to exceed, in the place of a least one."""
    most: float | None = None
    option: str | None = None
    """The option that sets it, and then no settings file does; empty if whatever starts the server
    sets it. A verb that does not declare the option itself has it nevertheless."""
    metavar: str | None = None
    """The word for the value of the option in the help."""
    variable: str | None = None
    """The environment variable that is read when the option is not given."""
    original: str = ""
    """The original's names for it, with spaces between, the present one first."""
    value: str | None = None
    """The reader of the text of the original's value, by its name in ``original_names.READERS``."""

    @property
    def name(self) -> str:
        """Return the name of the field."""
        return self.path.rpartition(".")[2]

    @property
    def keys(self) -> Sequence[str]:
        """Return the keys that lead to it in its table."""
        return self.path.split(".")[1:]

    @property
    def parameter(self) -> str:
        """Return the name of its option as a parameter; empty without an option."""
        return (self.option or "").removeprefix("--").replace("-", "_")


def configuration_of(table: str) -> type:
    """Return the configuration that a table has fields of."""
    if table == "controller":
        from pravega_controller.config import ControllerConfig

        return ControllerConfig
    from segstore.process.config import SegmentStoreConfig

    return SegmentStoreConfig


@cache
def declarations_of(table: str) -> tuple[Declaration, ...]:
    """Return all settings of a table, those of its sections after its own."""
    return tuple(
        sorted(_walk(configuration_of(table), table), key=lambda each: each.path.count("."))
    )


def section_of(hint: Any) -> type | None:
    """Return the configuration of a section, None for a plain setting."""
    import msgspec

    for each in get_args(hint) if isinstance(hint, types.UnionType) else (hint,):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            return each
    return None


def _walk(configuration: type, path: str) -> Iterator[Declaration]:
    meanings = _read_meanings(configuration)
    parameters = inspect.signature(configuration).parameters
    kinds = get_type_hints(configuration)
    for name, hint in get_type_hints(configuration, include_extras=True).items():
        kind = kinds[name]
        if get_origin(kind) is Union:
            kind = reduce(or_, get_args(kind))
        if (section := section_of(kind)) is not None:
            yield from _walk(section, f"{path}.{name}")
            continue
        found: dict[str, Any] = {}
        for meta in _find_metas(hint):
            bounds = {"least": meta.ge, "above": meta.gt, "most": meta.le}
            found |= {word: bound for word, bound in bounds.items() if bound is not None}
            found |= meta.extra or {}
        default = parameters[name].default
        yield Declaration(f"{path}.{name}", kind, default, meanings.get(name, ""), **found)


def _find_metas(hint: Any) -> Iterator[Any]:
    """Return what is known of a type, and of those that it is a union of."""
    if get_origin(hint) is Annotated:
        kind, *metas = get_args(hint)
        yield from metas
        yield from _find_metas(kind)
    elif isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        for each in get_args(hint):
            yield from _find_metas(each)


def _read_meanings(configuration: type) -> dict[str, str]:
    """Return the docstrings of fields, by name, each as one line."""
    meanings: dict[str, str] = {}
    for base in reversed(configuration.__mro__):
        meanings |= _read_docstrings(base.__module__).get(base.__name__, {})
    return meanings


@cache
def _read_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of the fields of a module's classes, which no class keeps."""
    path = getattr(sys.modules[module], "__file__", None)
    if module.partition(".")[0] in ("builtins", "msgspec") or path is None:
        return {}
    found: dict[str, dict[str, str]] = {}
    for each in ast.parse(Path(path).read_text("utf-8")).body:
        if not isinstance(each, ast.ClassDef):
            continue
        fields = found[each.name] = {}
        for field, behind in pairwise(each.body):
            match field, behind:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    fields[name] = " ".join(text.split())
    return found

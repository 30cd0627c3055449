"""The options of verbs that start one server: its settings that are declared with an option.

Owns: the conversion of declarations to options, and of their values to settings.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

import typer

from pravega_admin.serving.declarations import Declaration, declarations_of
from segstore_client.addresses import parse_host_port

GIVEN: Final = "given"
"""The parameter of a verb that gets the values of the settings whose options it does not name."""
_PLAIN: Final = (bool, int, float, str, Path)
_ADDRESS: Final = tuple[str, int]


def with_settings(verb: Callable[..., None], table: str) -> Callable[..., None]:
    """Return a verb whose parameters without an option of their own have those of a table's
    settings of their names.

    If the verb has a parameter ``given``, it has the options of all other settings of the table,
    too, and gets them as settings of a settings file, without the table's name.
    """
    parameters = dict(inspect.signature(verb, eval_str=True).parameters)
    declared = {each.parameter: each for each in declarations_of(table) if each.parameter}
    others: dict[str, Declaration] = {}
    if parameters.pop(GIVEN, None) is not None:
        others = {name: each for name, each in declared.items() if name not in parameters}

    @wraps(verb)
    def run(**values: Any) -> None:
        if others:
            values[GIVEN] = _collect({each: values.pop(name) for name, each in others.items()})
        verb(**values)

    first, *own = (
        _make_parameter(declared[name])
        if name in declared and get_origin(each.annotation) is not Annotated
        else each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in parameters.items()
    )
    signature = inspect.Signature([first, *map(_make_parameter, others.values()), *own])
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def _make_parameter(declaration: Declaration) -> inspect.Parameter:
    kind = declaration.kind
    if isinstance(kind, types.UnionType):
        [kind] = [each for each in get_args(kind) if each is not types.NoneType]
    if kind == _ADDRESS:
        kind = str
    assert kind in _PLAIN, f"no option can have a value as {declaration.path}"
    option = typer.Option(
        declaration.option,
        metavar=declaration.metavar,
        envvar=declaration.variable,
        min=declaration.least,
        max=declaration.most,
        help=declaration.meaning,
    )
    return inspect.Parameter(
        declaration.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=declaration.default,
        annotation=Annotated[kind if declaration.default is not None else kind | None, option],
    )


def _collect(values: Mapping[Declaration, Any]) -> dict[str, Any]:
    """Return the settings with these values. A section is there only if something in it is set."""
    settings: dict[str, Any] = {}
    for declaration, value in values.items():
        *sections, name = declaration.keys
        if sections and value == declaration.default:
            continue
        table = settings
        for each in sections:
            table = table.setdefault(each, {})
        is_address = isinstance(value, str) and _ADDRESS in (
            declaration.kind,
            *get_args(declaration.kind),
        )
        table[name] = parse_host_port(value) if is_address else value
    return settings

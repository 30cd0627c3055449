"""The help of verbs, in the words of users.

Owns: the classes of verbs and of their groups, whose help names values as ``PATH`` or ``N`` where
the parser would name the types of Python.

A flag and an argument show no kind of value: a flag has no value, and an argument's name describes
it.

Invariants:
1. Help names no types of Python, and is not cut off. Held by
   ``test_help_names_no_types_of_python_and_cuts_nothing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import typer
from typer._click.exceptions import NoSuchOption
from typer._click.exceptions import UsageError as ParserError
from typer.core import TyperCommand, TyperGroup

from pravega_admin.logins import add_login_options
from pravega_admin.output.other_words import explain_option, explain_verb, move_options

VALUE_NAMES = {
    "str": "TEXT",
    "list[str]": "TEXT",
    "path": "PATH",
    "int": "N",
    "int range": "N",
    "float": "NUMBER",
    "float range": "NUMBER",
}
"""The name that is shown for each type of value, unless a parameter has its own ``metavar``."""


class Verb(TyperCommand):
    """A verb; one that talks to a controller has the options of a caller, too."""

    def __init__(self, name: str | None, *, params: list[Any] | None = None, **rest: Any) -> None:
        super().__init__(name, params=add_login_options(params or []), **rest)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; answer an option of Kafka's tools with ours."""
        try:
            return super().parse_args(ctx, args)
        except NoSuchOption as error:
            if answer := explain_option(error.option_name):
                error.message, error.possibilities = answer, []
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the verb."""
        name_values(self.get_params(ctx))
        super().format_help(ctx, formatter)


class VerbGroup(TyperGroup):
    """A group of verbs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments up to the verb; the verb gets the options before it."""
        return super().parse_args(ctx, move_options(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb that the arguments name; answer one of Kafka's tools with ours."""
        try:
            return super().resolve_command(ctx, args)
        except ParserError as error:
            error.message = explain_verb(args[0], list(self.commands)) or error.message
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of the group."""
        name_values(self.get_params(ctx))
        super().format_help(ctx, formatter)


class Verbs(typer.Typer):
    """The verbs of a group, to which modules add theirs."""

    def __init__(self, *, cls: type[VerbGroup] = VerbGroup, **settings: Any) -> None:
        super().__init__(cls=cls, no_args_is_help=True, **settings)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any
    ) -> Callable[[Any], Any]:
        """Return a decorator that adds a verb."""
        return super().command(name, cls=cls or Verb, **settings)


def name_values(parameters: Iterable[Any]) -> None:
    """Let the help of the parameters name values as users do."""
    for parameter in parameters:
        # The parser lets us replace the text of an option, but not the type of an argument.
        parameter.display_type = partial(_value_name, parameter, type(parameter).display_type)


def _value_name(parameter: Any, display_type: Callable[[Any, Any], str], ctx: Any) -> str:
    if parameter.param_type_name == "argument" or parameter.is_flag:
        return ""
    shown = display_type(parameter, ctx).strip("<>")
    return VALUE_NAMES.get(shown, shown)

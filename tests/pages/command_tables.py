"""Makes the page of the command line from the verbs as they are declared.

Owns: the form of a verb's part, and which options are told once for all verbs.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from typing import Any

import typer.main

from pravega_admin.errors import EXIT_CODES
from pravega_admin.output.help_pages import name_values
from pravega_admin.verbs import app

_HEAD = "| {} | default | variable | meaning |\n| --- | --- | --- | --- |\n"
_COMMON_SHARE = 2
"""An option is told once if one verb in so many has it, with the same words."""


def list_verbs() -> str:
    """Return all verbs, each with its arguments and options."""
    verbs = list(walk(typer.main.get_command(app), "segstore"))
    common = find_common([verb for _, verb in verbs])
    parts = [f"\n### {name}\n\n{describe(name, verb, common)}" for name, verb in verbs]
    return "".join(parts) + "\n"


def list_common_options() -> str:
    """Return the options that most verbs have."""
    verbs = [verb for _, verb in walk(typer.main.get_command(app), "segstore")]
    common = find_common(verbs)
    options = {}
    for verb in verbs:
        name_values(verb.params)
        options |= {key_of(each): (verb, each) for each in verb.params if key_of(each) in common}
    rows = [row_of(verb, each) for verb, each in options.values()]
    return _HEAD.format("option") + "".join(rows)


def list_exit_codes() -> str:
    """Return the exit codes with their meanings."""
    rows = [f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items()]
    return "| code | meaning |\n| --- | --- |\n" + "".join(rows)


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the verbs below a group, in the order of its help, each with its words."""
    for word, each in getattr(command, "commands", {}).items():
        if hasattr(each, "commands"):
            yield from walk(each, f"{name} {word}")
        elif not each.hidden:
            yield f"{name} {word}", each


def find_common(verbs: list[Any]) -> set[tuple[str, str]]:
    """Return the options that are told once for all verbs."""
    counts = Counter(key_of(each) for verb in verbs for each in verb.params if is_option(each))
    return {key for key, count in counts.items() if count * _COMMON_SHARE > len(verbs)}


def key_of(parameter: Any) -> tuple[str, str]:
    """Return the name and the meaning of a parameter, by which it is the same in other verbs."""
    return parameter.name, parameter.help or ""


def is_option(parameter: Any) -> bool:
    """Return whether a parameter is an option, and no argument."""
    return bool(parameter.param_type_name == "option")


def describe(name: str, verb: Any, common: set[tuple[str, str]]) -> str:
    """Return a verb's part of the page: its usage, its meaning, and a table of its parameters."""
    name_values(verb.params)
    shown = [each for each in verb.params if not getattr(each, "hidden", False)]
    arguments = [each for each in shown if not is_option(each)]
    options = [each for each in shown if is_option(each) and key_of(each) not in common]
    words = [name, *(usage_of(each) for each in arguments), "[OPTION]..." * bool(options)]
    text = f"`{' '.join(filter(None, words))}`\n\n{plain(verb.help or '')}\n"
    for kind, parameters in (("argument", arguments), ("option", options)):
        if parameters:
            rows = "".join(row_of(verb, each) for each in parameters)
            text += f"\n{_HEAD.format(kind)}{rows}"
    if any(key_of(each) in common for each in shown):
        text += "\nAnd the [options of most commands](#options-of-most-commands).\n"
    return text


def usage_of(argument: Any) -> str:
    """Return an argument as a usage has it."""
    word = argument.metavar or argument.name.upper()
    word = word if argument.required or word.startswith("[") else f"[{word}]"
    return word + "..." * (argument.nargs == -1)


def row_of(verb: Any, parameter: Any) -> str:
    """Return the row of an argument or an option."""
    if is_option(parameter):
        names = [f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts)]
        name = f"{', '.join(names)} {value_of(verb, parameter)}".strip()
    else:
        name = f"`{usage_of(parameter).strip('[]')}`"
    variable = parameter.envvar or ""
    cells = (
        name,
        default_of(parameter),
        f"`{variable}`" if variable else "",
        plain(parameter.help or ""),
    )
    return f"| {' | '.join(cells)} |\n"


def value_of(verb: Any, option: Any) -> str:
    """Return the word for the value of an option, and its bounds."""
    word = option.metavar or option.display_type(verb.context_class(verb))
    bounds = [f" {text} {bound}" for text, bound in bounds_of(option) if bound is not None]
    return plain(word + "".join(bounds))


def bounds_of(option: Any) -> list[tuple[str, Any]]:
    """Return the words for the bounds of an option, each with its value."""
    return [("from", getattr(option, "min", None)), ("to", getattr(option, "max", None))]


def default_of(parameter: Any) -> str:
    """Return the default as it is typed; nothing if there is none."""
    value = parameter.default
    if parameter.required:
        return "required"
    if value in (None, False, "", [], ()) or callable(value):
        return ""
    value = value.value if isinstance(value, enum.Enum) else value
    return "yes" if value is True else f"`{value}`"


def plain(text: str) -> str:
    """Return a help text as one line of a table."""
    return " ".join(text.replace("\b", "").split()).replace("|", "\\|").replace("<", "&lt;")

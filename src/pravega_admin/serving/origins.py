"""Tells where each setting of a server comes from.

Owns: the order in which options, environment, the original's names, the settings file and defaults
are asked, and which values are secrets.

The command line is parsed by the verb that starts the server. So these are the values with which a
server starts that gets the same arguments, in the same environment.

Invariants:
1. The value of each setting is the one that the server gets. Held by
   ``test_each_setting_is_told_with_its_origin`` and ``test_defaults_are_those_of_the_servers``.
2. No secret is told. Held by ``test_secrets_are_masked``.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

from pravega_admin.serving.declarations import Declaration, declarations_of
from pravega_admin.serving.original_defaults import translation_of
from pravega_admin.serving.original_names import merge_settings
from pravega_admin.serving.settings_file import find_line, read_settings

TABLES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "standalone": ("segment_store", "controller"),
    "server": ("segment_store",),
    "controller": ("controller",),
}
"""The tables of a settings file that each verb reads."""
DEFAULT: Final = "default"
MASK: Final = "***"
_SECTION_OPTIONS: Final = {
    "zookeeper": "segment_store.cluster.zookeeper",
    "cluster": "segment_store.cluster.name",
    "publish": "segment_store.cluster.published",
    "replicas": "segment_store.cluster.replicas",
    "bookkeeper_ledgers": "segment_store.cluster.ledgers_root",
}
"""The settings that ``segstore server`` makes of options of its own, by parameter."""
_SECRET: Final = re.compile(r"password|secret|session_token", re.IGNORECASE)
_CREDENTIALS_IN_URL: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_NO_SETTINGS: Final = frozenset({"help", "install_completion", "show_completion"})
_AWS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_CA_BUNDLE",
)
"""The variables that a tier 2 in S3 reads."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting with its value, and the place that it comes from."""

    name: str
    """Its path in a settings file, its option, or its variable."""
    value: Any
    origin: str


def find_settings(verb: str, context: typer.Context) -> list[Setting]:
    """Return the settings of a server, from the parsed command line of its verb.

    Raises ``AdminError`` and ``UsageError`` for what a start would refuse.
    """
    path: Path | None = context.params.get("config")
    file = read_settings(path)
    translation = translation_of(context)
    translated = translation.settings if translation is not None else {}
    merge_settings(file, translated)
    text = path.read_text() if path is not None else ""
    by_path = {} if verb != "server" else dict(_SECTION_OPTIONS)
    declared = [each for table in TABLES_OF[verb] for each in declarations_of(table)]
    if verb != "standalone":
        by_path |= {each.parameter: each.path for each in declared if each.parameter}
    given = {by_path.get(each.name, ""): each for each in _read_options(context)}
    found = []
    for each in declared:
        if each.option is not None and each.path not in given:
            # Whatever starts the server sets it, by options of its own.
            continue
        option = given.get(each.path)
        if option is not None and option.origin != DEFAULT:
            found.append(Setting(each.path, option.value, option.origin))
        elif (value := _look_up(file, each)) is not None:
            place = f"{path}:{find_line(text, each.path.split('.'))}"
            found.append(Setting(each.path, value, place))
        elif (value := _look_up(translated, each)) is not None:
            assert translation is not None
            source = translation.sources.get(each.path, "")
            found.append(Setting(each.path, value, _name_source(source)))
        else:
            found.append(Setting(each.path, _default_of(each, option), DEFAULT))
    options = [
        Setting(f"--{each.name.replace('_', '-')}", each.value, each.origin)
        for each in _read_options(context)
        if each.name not in by_path
    ]
    return [
        Setting(each.name, _mask(each.name, _plain(each.value)), each.origin)
        for each in [*options, *found, *_read_aws([*options, *found])]
    ]


def _read_options(context: typer.Context) -> Iterator[Setting]:
    """Yield the parameters of a verb with their values."""
    translation = translation_of(context)
    for parameter in context.command.params:
        name = parameter.name
        if name is None or name in _NO_SETTINGS:
            continue
        source = context.get_parameter_source(name)
        kind = DEFAULT if source is None else source.name
        origin = DEFAULT
        if kind == "COMMANDLINE":
            origin = f"option {parameter.opts[0]}"
        elif kind == "ENVIRONMENT":
            origin = _name_source(_find_variable(parameter.envvar))
        elif kind == "DEFAULT_MAP" and translation is not None and name in translation.options:
            origin = _name_source(translation.sources.get(name, ""))
        yield Setting(name, context.params.get(name), origin)


def _find_variable(names: str | Sequence[str] | None) -> str:
    """Return the variable that is set."""
    each = [names] if isinstance(names, str) else list(names or ())
    return next((name for name in each if os.environ.get(name)), "")


def _name_source(name: str) -> str:
    """Return the words for a variable, or for a property of the original's in ``JAVA_OPTS``."""
    if not name:
        return "default of the original"
    return f"variable {name}" if name in os.environ else f"property {name} in JAVA_OPTS"


def _look_up(tables: Mapping[str, Any], declaration: Declaration) -> Any:
    value: Any = tables
    for key in declaration.path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def _default_of(declaration: Declaration, option: Setting | None) -> Any:
    # An option that may be repeated is an empty list without a value.
    if option is not None and option.value not in (None, [], ()):
        return option.value
    default = declaration.default
    if default is inspect.Parameter.empty:
        return None
    # A mapping is made anew for each configuration.
    return default.factory() if hasattr(default, "factory") else default


def _read_aws(settings: list[Setting]) -> Iterator[Setting]:
    """Yield what tier 2 in S3 reads of the environment."""
    if not any(str(each.value).startswith("s3://") for each in settings):
        return
    for name in _AWS:
        if value := os.environ.get(name):
            yield Setting(name, value, f"variable {name}")


def _plain(value: Any) -> Any:
    """Return a value as a document has it: paths and addresses are texts."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        if len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int:
            return f"{value[0]}:{value[1]}"
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    # Enumerations of options are texts, too.
    return str(value) if isinstance(value, str) else value


def _mask(name: str, value: Any) -> Any:
    """Return a value that may be told."""
    if isinstance(value, str) and value:
        if _SECRET.search(name.rpartition(".")[2]) and not name.endswith("_file"):
            return MASK
        return _CREDENTIALS_IN_URL.sub(MASK, value)
    if isinstance(value, list):
        return [_mask(name, each) for each in value]
    return value

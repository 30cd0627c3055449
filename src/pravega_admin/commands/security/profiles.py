"""``segstore profile``: the profiles of the user: where the controllers are, and who calls.

Owns: the changes of their file, whose form ``logins`` knows.

Invariants:
1. When the file is changed, others cannot read it, and a crash leaves it as it was or as it shall
   be. Held by ``test_the_file_of_profiles_is_replaced_as_a_whole``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from pravega_admin.errors import AdminError
from pravega_admin.logins import (
    DEFAULT_PROFILE,
    PROFILE_KEYS,
    check_profile,
    profiles_path,
    read_profiles,
)
from pravega_admin.options import OutputOption
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import OutputFormat, print_fields, print_rows, report
from segstore_client.errors import NotFoundError, UsageError

app = Verbs(help="List, show, change and delete profiles of this user.")

COLUMNS = ("profile", "used", "controller", "user")
_NAME = re.compile(r"[A-Za-z0-9_-]+")

NameArgument: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="A profile's name.")]


@app.command("list")
def list_(output: OutputOption = OutputFormat.TABLE) -> None:
    """List the profiles, and which one is used without --profile."""
    used = os.environ.get("SEGSTORE_PROFILE") or DEFAULT_PROFILE
    rows = [
        {
            "profile": name,
            "used": name == used,
            "controller": values.get("controller"),
            "user": values.get("user"),
        }
        for name, values in sorted(read_profiles(_path()).items())
    ]
    print_rows(rows, COLUMNS, output)


@app.command()
def show(name: NameArgument = DEFAULT_PROFILE, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show what a profile has. It has names of files with secrets, and no secret."""
    values = _find(read_profiles(_path()), name)
    check_profile(_path(), name, values)
    print_fields({"profile": name, **values}, output)


@app.command("set")
def set_(
    name: NameArgument,
    values: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE...", help=f"Keys are {', '.join(sorted(PROFILE_KEYS))}."),
    ],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change a profile, or make it; KEY= takes a key away. Comments of the file are lost."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be the name of a profile: letters, digits, _ and - can")
    path = _path()
    profiles = read_profiles(path)
    changed = dict(profiles.get(name, {}))
    for each in values:
        key, delimiter, value = each.partition("=")
        if not delimiter:
            raise UsageError(f"{each!r} is not KEY=VALUE")
        changed[key] = value
    check_profile(path, name, changed)
    profiles[name] = {key: value for key, value in changed.items() if value}
    _write(path, profiles)
    report(f"profile {name} is in {path}", {"profile": name, **profiles[name]}, output)


@app.command()
def delete(name: NameArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Delete a profile; files that it names stay."""
    path = _path()
    profiles = read_profiles(path)
    _find(profiles, name)
    del profiles[name]
    _write(path, profiles)
    report(f"profile {name} deleted", {"profile": name, "deleted": True}, output)


def _path() -> Path:
    return profiles_path(os.environ)


def _find(profiles: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    if name not in profiles:
        raise NotFoundError(f"there is no profile {name} in {_path()}")
    return profiles[name]


def _write(path: Path, profiles: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace the file of profiles."""
    lines = []
    for name, values in sorted(profiles.items()):
        lines.append(
            f"[profiles.{json.dumps(name)}]" if not _NAME.fullmatch(name) else f"[profiles.{name}]"
        )
        # A text of JSON is one of TOML.
        lines += [
            f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()
        ]
        lines.append("")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write("\n".join(lines))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise
    except OSError as error:
        raise AdminError(f"{path} cannot be written: {error.strerror}") from error

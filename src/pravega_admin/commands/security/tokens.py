"""``segstore token``: create, rotate, show.

Owns: the arguments and the output of these verbs. They work on a file with the keys that sign
delegation tokens, of which segment stores and controllers have copies.

Invariants:
1. No verb prints a key. Held by ``test_verbs_print_no_key``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from pravega_admin.errors import AdminError
from pravega_admin.options import OutputOption
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import OutputFormat, print_rows, report
from pravega_security.signing_keys import (
    KeyFile,
    SigningKeysError,
    create_key_file,
    prepare_rotation,
    read_key_file,
    rotate_keys,
)
from segstore_client.errors import UsageError

app = Verbs(help="Create, rotate and show the keys that sign delegation tokens.")

FileArgument: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="The file with the keys, as token_keys of the servers names it."
    ),
]


@app.command()
def create(file: FileArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Make a file with a new key."""
    with _explaining():
        keys = create_key_file(file, now=int(time.time()))
    _report(f"{file} has the new key {keys.current.id}", file, keys, output)


@app.command()
def rotate(
    file: FileArgument,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Only add the next key: servers accept its tokens, and sign none with it. Copy the"
            " file to all servers, rotate, and copy it again.",
        ),
    ] = False,
    revoke: Annotated[
        bool,
        typer.Option(
            "--revoke", help="Refuse the tokens of the former key at once: it has become known."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Rotate even if the last rotation is not long ago.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Sign tokens with the next key, or a new one; tokens of the former key stay valid."""
    if prepare and (revoke or force):
        raise UsageError("--prepare changes no key: it goes with neither --revoke nor --force")
    now = int(time.time())
    with _explaining():
        if prepare:
            keys = prepare_rotation(file, now=now)
            assert keys.next is not None
            sentence = f"{file} has the next key {keys.next.id}; copy it to all servers"
        else:
            keys = rotate_keys(file, now=now, keep_former=not revoke, force=force)
            sentence = (
                f"tokens are signed with the key {keys.current.id}; copy {file} to all servers"
            )
    _report(sentence, file, keys, output)


@app.command()
def show(file: FileArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show the ids of the keys in a file, and for how long they have had their roles."""
    now = int(time.time())
    with _explaining():
        keys = read_key_file(file)
    rows = [
        {"role": role, "id": key.id, "seconds": max(0, now - key.since)}
        for role, key in keys.roles.items()
    ]
    print_rows(rows, ["role", "id", "seconds"], output)


def _report(sentence: str, file: Path, keys: KeyFile, output: OutputFormat) -> None:
    report(
        sentence,
        {"file": str(file), **{role: key.id for role, key in keys.roles.items()}},
        output,
    )


@contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except SigningKeysError as error:
        raise AdminError(str(error)) from error

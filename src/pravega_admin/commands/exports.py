"""``segstore export`` and ``segstore import``: a stream to a file, and back.

Owns: the arguments and the output of these verbs, and what becomes of a file or pipe that cannot be
written.

Invariants:
1. When the reader of an export to standard output ends early, the command fails. Held by
   ``test_an_export_whose_reader_has_gone_is_a_failure``.
2. When no room is left for a file, the command says so, and the next one goes on. Held by
   ``test_an_export_on_a_full_disk_is_told_and_goes_on``.
"""

from __future__ import annotations

import enum
import errno
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeAlias

import typer

from pravega_admin.commands.controllers import ControllerOption, open_controller
from pravega_admin.commands.events import PATIENCE_SECONDS, print_delay, size_of
from pravega_admin.errors import AdminError, NoRoomError, OutputClosedError
from pravega_admin.options import OutputOption, StreamArgument, StreamName, parse_stream_name
from pravega_admin.output.output import OutputFormat, print_message, progress, report
from pravega_admin.output.standard_streams import discard_output
from segstore_client.addresses import DEFAULT_CONTROLLER
from segstore_client.errors import DamagedExportError, NotFoundError, UsageError
from segstore_client.positions import Position

if TYPE_CHECKING:
    from pravega_admin.exports.export_file import ExportReader
    from pravega_admin.exports.importer import Counts, Target
    from pravega_admin.exports.manifest import Manifest
    from segstore_client.controller.controller_client import ControllerClient

STANDARD_STREAM = "-"


class Compression(enum.StrEnum):
    """The compression of a file, by the word for users."""

    DEFLATE = "deflate"
    NONE = "none"


PatienceOption: TypeAlias = Annotated[
    float, typer.Option("--patience", min=0, help="Seconds to retry while servers are away.")
]


def export(
    stream: StreamArgument,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Where to write; - is the standard output.")
    ],
    start: Annotated[
        str,
        typer.Option("--from", metavar="PLACE", help="Where to begin, as that of segstore read."),
    ] = Position.HEAD.value,
    end: Annotated[
        str, typer.Option("--to", metavar="PLACE", help="Where to end: a place as that of --from.")
    ] = Position.TAIL.value,
    compression: Annotated[
        Compression, typer.Option("--compression", help="How the file is compressed.")
    ] = Compression.DEFLATE,
    patience: PatienceOption = PATIENCE_SECONDS,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Export a stream to a file, with all that segstore import needs.

    The file is one of Avro, which other programs read, too. Until it is complete it is called
    FILE.part. An export that was ended goes on when the same command is repeated.
    """
    name = parse_stream_name(stream)
    task = _ExportTask(name, (start, end), "deflate" if compression == "deflate" else "null")
    began = time.monotonic()
    with open_controller(controller) as client:
        if file == STANDARD_STREAM:
            manifest, events = task.to_pipe(client, patience)
        else:
            manifest, events = task.to_file(client, Path(file), patience)
    fields = {"stream": str(name), "file": file, "events": events, "bytes": manifest.total_bytes}
    fields["seconds"] = round(time.monotonic() - began, 3)
    sentence = f"{events} events of {name} are in {file}"
    if file == STANDARD_STREAM:
        print_message(sentence.replace(" -", " the output"))
    else:
        report(sentence, fields, output)


def import_(
    stream: StreamArgument,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="An export; - is the standard input.")
    ],
    key_from: Annotated[
        str | None,
        typer.Option(
            "--key-from",
            metavar="json:/POINTER",
            help="Spread the events by routing keys, which are in them at this place.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Give every event this routing key.")
    ] = None,
    segments: Annotated[
        int | None,
        typer.Option(
            "--segments", "-s", min=1, help="With keys: segments of a stream that is made."
        ),
    ] = None,
    again: Annotated[
        str,
        typer.Option("--again", metavar="NAME", help="With keys: import the same file once more."),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file, and write nothing.")
    ] = False,
    patience: PatienceOption = PATIENCE_SECONDS,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Import an export, each event once: make a stream like the exported one.

    With --key-from or --key the stream may exist, and its own segments get the events by their
    keys. An import that was ended goes on when the same command is repeated.
    """
    name = parse_stream_name(stream)
    keys = _KeyOptions(key_from, key, segments, again)
    keys.check()
    began = time.monotonic()
    with ExitStack() as stack:
        source = _open_export(file, stack)
        if dry_run:
            _report_contents(source, file, output)
            return
        reader = _read_header(source, file)
        client = stack.enter_context(open_controller(controller))
        target = stack.enter_context(keys.open_target(client, name, reader.manifest, patience))
        counts = _write_events(reader, target, file)
    _report_import(name, file, reader.manifest, target, counts, time.monotonic() - began, output)


# ---- Exports -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ExportTask:
    """An export: the stream, the places in the words of the user, and the codec."""

    name: StreamName
    places: tuple[str, str]
    codec: str

    def to_pipe(self, client: ControllerClient, patience: float) -> tuple[Manifest, int]:
        """Write to the standard output; return the manifest and the number of events."""
        from pravega_admin.exports.export_file import encode_header
        from pravega_admin.exports.exporter import write_export
        from pravega_admin.exports.manifest import Positions

        if sys.stdout.isatty():
            raise UsageError("an export is not for a terminal: name a file, or use a pipe")
        manifest = self._begin(client)
        stdout = sys.stdout.buffer
        try:
            stdout.write(encode_header(manifest, self.codec))
            with _progress("exporting", manifest) as advance:
                events = write_export(
                    client,
                    manifest,
                    Positions(manifest.steps).rest(),
                    stdout,
                    codec=self.codec,
                    patience=patience,
                    on_bytes=advance,
                )
            stdout.flush()
        except OutputClosedError:
            # For other commands that is no failure, but who pipes an export wants all of it.
            discard_output()
            raise AdminError("the export is not complete: its reader has gone") from None
        return manifest, events

    def to_file(
        self, client: ControllerClient, path: Path, patience: float
    ) -> tuple[Manifest, int]:
        """Write to a file; return the manifest and the number of events that were written now."""
        from pravega_admin.exports.exporter import open_part, write_export

        with (
            _explaining(path),
            open_part(
                path, self.codec, self.places, str(self.name), lambda: self._begin(client)
            ) as part,
        ):
            if part.taken_bytes:
                told = f"{part.taken_bytes} of {part.manifest.total_bytes} bytes"
                print_message(f"going on with {path}.part, which has {told}")
            with _progress("exporting", part.manifest) as advance:
                advance(part.taken_bytes)
                events = write_export(
                    client,
                    part.manifest,
                    part.rest,
                    part.file,
                    codec=part.codec,
                    patience=patience,
                    on_bytes=advance,
                )
            events += part.taken_events
            return part.manifest, events

    def _begin(self, client: ControllerClient) -> Manifest:
        """Return the manifest of an export that begins now."""
        from pravega_admin.exports.exporter import make_manifest
        from segstore_client.cuts.bounds import find_bounds
        from segstore_client.cuts.places import parse_place

        scope, stream = self.name.scope, self.name.stream
        first = parse_place("--from", self.places[0])
        last = parse_place("--to", self.places[1])
        bounds = find_bounds(client, scope, stream, start=first, end=last)
        return make_manifest(
            client,
            scope,
            stream,
            bounds.offsets,
            bounds.ends,
            places=self.places,
            exported=datetime.now(UTC).isoformat(timespec="seconds"),
        )


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Convert what the system refuses for a file to a sentence."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ConnectionError | TimeoutError):
            raise
        sentence = f"{path} cannot be written: {error.strerror}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoRoomError(f"{sentence}; the same command goes on when there is room") from error
        raise AdminError(sentence) from error


# ---- Imports -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _KeyOptions:
    """The options about routing keys."""

    key_from: str | None
    key: str | None
    segments: int | None
    again: str

    @property
    def have_key(self) -> bool:
        """Return whether events are spread by keys."""
        return self.key_from is not None or self.key is not None

    def check(self) -> None:
        """Raise ``UsageError`` if the options do not fit together."""
        if self.key_from is not None and self.key is not None:
            raise UsageError("the routing key is either --key or --key-from, not both")
        if not self.have_key and (self.segments is not None or self.again):
            raise UsageError(
                "--segments and --again need --key-from or --key: without keys an import makes a"
                " stream with the exported segments"
            )

    def open_target(
        self, client: ControllerClient, name: StreamName, manifest: Manifest, patience: float
    ) -> Target:
        """Return the stream that gets the events."""
        from pravega_admin.exports.importer import KeyedTarget, writer_id_of
        from pravega_admin.exports.keys import parse_key_source
        from pravega_admin.exports.stream_copy import StreamCopy

        if not self.have_key:
            return StreamCopy(
                client,
                name.scope,
                name.stream,
                manifest,
                writer_id=writer_id_of(manifest, "copy"),
                patience=patience,
                on_delay=print_delay,
            )
        key, source = self.key or "", self.key_from
        key_of = (lambda event: key) if source is None else parse_key_source(source)
        # With other keys the events are in other segments, so that is another import.
        wishes = ("key", key) if source is None else ("key-from", source)
        return KeyedTarget(
            client,
            name.scope,
            name.stream,
            manifest,
            key_of,
            writer_id=writer_id_of(manifest, *wishes, self.again),
            segments=self.segments,
            patience=patience,
            on_delay=print_delay,
        )


def _open_export(file: str, stack: ExitStack) -> BinaryIO:
    if file == STANDARD_STREAM:
        return sys.stdin.buffer
    try:
        return stack.enter_context(Path(file).open("rb"))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {file}") from error
    except OSError as error:
        raise AdminError(f"{file} cannot be read: {error.strerror}") from error


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Name the file in errors about it."""
    told = "the input" if file == STANDARD_STREAM else file
    try:
        yield
    except (DamagedExportError, UsageError) as error:
        raise type(error)(f"{told} is refused: {error}") from error
    except OSError as error:
        if isinstance(error, ConnectionError | TimeoutError):
            raise
        raise AdminError(f"{told} cannot be read: {error.strerror}") from error


def _read_header(source: BinaryIO, file: str) -> ExportReader:
    """Return the reader of a file whose header was read, and the rest as well if that is possible.

    What comes through a pipe can be read once only.
    """
    from pravega_admin.exports.export_file import ExportReader

    with _naming(file):
        if source.seekable():
            begin = source.tell()
            _check(source)
            source.seek(begin)
        return ExportReader(source)


def _check(source: BinaryIO) -> tuple[Manifest, Counts]:
    """Read a file to its end before anything is written; return its manifest and what it has."""
    from pravega_admin.exports.importer import check_file

    with progress("checking", total=size_of(source), in_bytes=True) as advance:
        return check_file(source, advance)


def _write_events(reader: ExportReader, target: Target, file: str) -> Counts:
    from pravega_admin.exports.importer import import_events

    with _naming(file), _progress("importing", reader.manifest) as advance:
        try:
            return import_events(reader, target, advance)
        except KeyboardInterrupt:
            print_message(f"the same command goes on with {file}")
            raise


def _report_contents(source: BinaryIO, file: str, output: OutputFormat) -> None:
    with _naming(file):
        manifest, counts = _check(source)
    fields = {
        "file": file,
        "stream": manifest.stream,
        "exported": manifest.exported,
        "events": counts.events,
        "bytes": counts.data_bytes,
        "segments": sum(map(len, manifest.steps)),
        "sealed": manifest.is_sealed,
    }
    sentence = f"{file} has {counts.events} events of {manifest.stream}, none is damaged"
    report(sentence, fields, output)


def _report_import(
    name: StreamName,
    file: str,
    manifest: Manifest,
    target: Target,
    counts: Counts,
    seconds: float,
    output: OutputFormat,
) -> None:
    stored = target.stored_events
    fields = {
        "stream": str(name),
        "file": file,
        "events": counts.events,
        "stored": stored,
        "bytes": counts.data_bytes,
        "seconds": round(seconds, 3),
        "segments": target.describe_segments(),
    }
    sentence = f"{counts.events} events of {file} are in {name}"
    if stored < counts.events:
        sentence += f", of which this import stored {stored}"
    if manifest.is_sealed:
        sentence += f"; the exported stream was sealed, {name} is not"
    report(sentence, fields, output)


@contextmanager
def _progress(label: str, manifest: Manifest) -> Iterator[Any]:
    with progress(label, total=manifest.total_bytes, in_bytes=True) as advance:
        yield advance

"""A supervisor that prints to somebody who does not read goes on."""

from __future__ import annotations

import os

from pravega_admin.supervisor.terminal import LINE_BYTES_MAX, print_at_once


def test_a_line_is_printed() -> None:
    reader, writer = os.pipe()
    with open(reader, encoding="utf-8") as read, open(writer, "w", encoding="utf-8") as stream:
        print_at_once("ready – now", stream)
        assert read.readline() == "ready – now\n"


def test_what_nobody_reads_is_dropped_without_waiting() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as read, open(writer, "w", encoding="utf-8") as stream:
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * LINE_BYTES_MAX)
        except BlockingIOError:
            pass
        os.set_blocking(writer, True)
        print_at_once("dropped", stream)
        assert read.read(LINE_BYTES_MAX) == b"x" * LINE_BYTES_MAX
        print_at_once("y" * 2 * LINE_BYTES_MAX, stream)
    # Nobody reads any more.


def test_a_reader_that_is_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream:
        print_at_once("dropped", stream)

"""A state that programs that block share by a real stream."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pravega_wire import commands as wire
from pravega_wire.blocking import SegmentConnection
from segstore_client import ConflictError, NotFoundError, PravegaError, blocking
from segstore_client.blocking.states.synchronizer import BlockingSynchronizer
from segstore_client.steps.state_steps import COMPACTION_BYTES
from support.served_stream import run, served_stream

Names = list[str]


def apply(names: Names, update: bytes) -> Names:
    return [*names, update.decode()]


def open_names(store: blocking.BlockingStore) -> BlockingSynchronizer[Names]:
    return store.synchronizer("s/t", load=lambda data: data.decode().split(), apply=apply)


def dump(names: Names) -> bytes:
    return " ".join(names).encode()


def add_ten(address: str, name: str) -> None:
    with blocking.connect(address) as store, open_names(store) as names:
        names.begin(b"first")
        for number in range(10):
            text = f"{name}{number}"

            def append(state: Names, text: str = text) -> Sequence[bytes]:
                return [] if text in state else [text.encode(), str(len(state)).encode()]

            assert len(names.change(append)) == 2
            assert not names.change(append)


def change_together(address: str) -> None:
    programs = [threading.Thread(target=add_ten, args=(address, name)) for name in "abc"]
    for program in programs:
        program.start()
    for program in programs:
        program.join()
    with blocking.connect(address) as store, open_names(store) as names:
        state = names.read()
        assert state[0] == "first"
        # Each update was decided on the state that it changed.
        assert state[2::2] == [str(number) for number in range(1, 61, 2)]
        for name in "abc":
            mine = [each for each in state[1::2] if each[0] == name]
            assert mine == [f"{name}{number}" for number in range(10)]
        assert names.compact(dump)
        with open_names(store) as late:
            assert not late.begin(b"too late")
            assert late.read() == state
            assert not late.is_long
            late.change(lambda _: [b"x" * COMPACTION_BYTES])
            assert late.is_long
            # Another client has compacted it meanwhile.
            assert not names.compact(dump)
            assert len(names.read()) == len(state) + 1
            assert names.compact(dump)
            late.read()
            late.find_length()
            assert late.state == names.state


async def test_each_change_of_programs_that_block_is_made_once(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(change_together, stream.address)


def change_interrupted(names: BlockingSynchronizer[Names], text: bytes) -> None:
    """Change the state; the program is interrupted just after that."""
    call = SegmentConnection.call

    def call_and_interrupt(connection: SegmentConnection, request: wire.Request) -> wire.Reply:
        reply = call(connection, request)
        if isinstance(request, wire.ConditionalAppend):
            raise KeyboardInterrupt
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentConnection, "call", call_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            names.change(lambda _: [text])


def interrupt_changes(address: str) -> None:
    with blocking.connect(address) as store, open_names(store) as names:
        names.begin(b"first")
        change_interrupted(names, b"second")
        assert names.state == ["first"]
        names.change(lambda state: [b"third"] if state == ["first", "second"] else [])
        assert names.state == ["first", "second", "third"]


async def test_a_change_that_was_interrupted_is_known_before_the_next(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(interrupt_changes, stream.address)


def interrupt_reads(address: str) -> None:
    interrupts = {"c", "own"}

    def apply_and_interrupt(names: Names, update: bytes) -> Names:
        text = update.decode()
        if text in interrupts:
            interrupts.remove(text)
            raise KeyboardInterrupt
        return [*names, text]

    with blocking.connect(address) as store, open_names(store) as other:
        other.begin(b"a")
        names = store.synchronizer(
            "s/t", load=lambda data: [data.decode()], apply=apply_and_interrupt
        )
        with names:
            assert names.read() == ["a"]
            other.change(lambda _: [b"b", b"c", b"d"])
            with pytest.raises(KeyboardInterrupt):
                names.read()
            assert names.read() == ["a", "b", "c", "d"]
            with pytest.raises(KeyboardInterrupt):
                names.change(lambda _: [b"own"])
            assert names.read() == ["a", "b", "c", "d", "own"]
        assert other.read() == names.state


async def test_a_read_that_was_interrupted_is_made_anew(tmp_path: Path) -> None:
    async with served_stream(tmp_path, 0) as stream:
        await run(interrupt_reads, stream.address)


def misuse(address: str) -> None:
    with blocking.connect(address) as store:
        with open_names(store) as names, pytest.raises(NotFoundError):
            names.read()
        store.create_scope("s")
        store.create_stream("s/t")
        with open_names(store) as names:
            with pytest.raises(ConflictError, match="no client has begun the state in s/t"):
                names.read()
            with pytest.raises(ConflictError, match="no client has begun the state in s/t"):
                names.change(lambda _: [b"one"])
        with store.writer("s/t") as writer:
            writer.write(b"no revision", key="k")
        with open_names(store) as names:
            for _ in range(2):
                with pytest.raises(PravegaError, match="s/t has no state of its kind: a revision"):
                    names.read()


async def test_what_is_no_state_is_told(tmp_path: Path) -> None:
    async with served_stream(tmp_path) as stream:
        await run(misuse, stream.address)

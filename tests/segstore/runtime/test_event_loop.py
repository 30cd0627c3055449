from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import trio

from segstore.runtime import event_loop
from segstore.runtime.event_loop import find_epoll_of, run_event_loop
from segstore.runtime.reactor import DeferredWork, Reactor, current_reactor


class Rounds(trio.abc.Instrument):
    """A counter of the rounds of trio and the steps of tasks."""

    def __init__(self) -> None:
        self.count = 0
        self.task_steps = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.task_steps += 1


def run_with_reactor(function: Callable[[Reactor], Awaitable[None]]) -> None:
    """Run a function in a driven event loop beside its reactor, for 60 seconds at most."""

    async def run() -> None:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                await nursery.start(current_reactor().run)
                await trio.sleep(0.01)
                await function(current_reactor())
                nursery.cancel_scope.cancel()

    run_event_loop(run)


def test_it_returns_what_the_function_returns() -> None:
    async def add(one: int, other: int) -> int:
        await trio.lowlevel.checkpoint()
        return one + other

    assert run_event_loop(add, 1, 2) == 3


def test_events_of_descriptors_cost_no_round_of_trio() -> None:
    rounds, events = Rounds(), list[int]()

    async def run(reactor: Reactor) -> None:
        ours, theirs = socket.socketpair()
        done = trio.Event()

        def on_event(flags: int) -> None:
            ours.recv(10)
            events.append(flags)
            reactor.defer(send if len(events) < 1_000 else done.set)

        def send() -> None:
            theirs.send(b"x")

        with ours, theirs:
            reactor.watch(ours.fileno(), on_event)
            trio.lowlevel.add_instrument(rounds)
            send()
            await done.wait()
            trio.lowlevel.remove_instrument(rounds)
            reactor.unwatch(ours.fileno())

    run_with_reactor(run)
    assert len(events) == 1_000
    assert rounds.count < 10


def test_a_task_that_a_step_wakes_runs_at_once() -> None:
    async def run(reactor: Reactor) -> None:
        for _ in range(20):
            ours, theirs = socket.socketpair()
            came = trio.Event()
            with ours, theirs:
                reactor.watch(ours.fileno(), lambda _, came=came: came.set())
                theirs.send(b"x")
                began = time.monotonic()
                await came.wait()
                assert time.monotonic() - began < 30
                reactor.unwatch(ours.fileno())

    run_with_reactor(run)


def test_what_a_task_defers_is_called_before_the_loop_sleeps() -> None:
    async def run(reactor: Reactor) -> None:
        for _ in range(20):
            called = trio.Event()
            reactor.defer(called.set)
            await called.wait()

    run_with_reactor(run)


def test_trios_descriptors_deadlines_and_threads_are_served() -> None:
    async def run(reactor: Reactor) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.lowlevel.wait_readable, ours)
                await trio.sleep(0.01)
                theirs.send(b"x")
        began = trio.current_time()
        await trio.sleep(0.05)
        assert trio.current_time() - began >= 0.05
        assert await trio.to_thread.run_sync(threading.get_ident) != threading.get_ident()

    run_with_reactor(run)


def test_deadlines_come_while_steps_go_on_and_on() -> None:
    async def run(reactor: Reactor) -> None:
        descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        count = 0

        def on_event(_: int) -> None:
            nonlocal count
            count += 1
            os.eventfd_write(descriptor, 1)

        reactor.watch(descriptor, on_event)
        os.eventfd_write(descriptor, 1)
        await trio.sleep(0.05)
        reactor.unwatch(descriptor)
        os.close(descriptor)
        assert count > 1

    run_with_reactor(run)


def test_steps_are_made_while_tasks_can_always_run() -> None:
    async def run(reactor: Reactor) -> None:
        ours, theirs = socket.socketpair()
        events: list[int] = []
        with ours, theirs:
            reactor.watch(ours.fileno(), events.append)
            theirs.send(b"x")
            while not events:
                await trio.lowlevel.checkpoint()
            reactor.unwatch(ours.fileno())

    run_with_reactor(run)


def test_a_signal_is_received() -> None:
    async def run(reactor: Reactor) -> None:
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            await trio.sleep(0.01)
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            async for number in signals:
                assert number == signal.SIGUSR1
                return

    run_with_reactor(run)


@pytest.mark.parametrize("is_busy", [False, True])
def test_what_a_callback_raises_ends_who_runs_the_reactor(is_busy: bool) -> None:
    def fail(_: int) -> None:
        raise ZeroDivisionError

    async def run(reactor: Reactor) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            reactor.watch(ours.fileno(), fail)
            theirs.send(b"x")
            while is_busy:
                await trio.lowlevel.checkpoint()
            await trio.sleep_forever()

    with pytest.RaisesGroup(ZeroDivisionError):
        run_with_reactor(run)


def test_what_a_callback_raises_in_the_round_of_a_cancellation_is_not_lost() -> None:
    failed = threading.Event()

    def fail(_: int) -> None:
        failed.set()
        raise ZeroDivisionError

    ours, theirs = socket.socketpair()

    async def run(reactor: Reactor) -> None:
        is_driven = trio.Event()
        reactor.defer(is_driven.set)
        await is_driven.wait()
        reactor.watch(ours.fileno(), fail)
        # Who drives is cancelled when this returns, before the callback is called.
        theirs.send(b"x")

    with ours, theirs, pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        run_with_reactor(run)
    assert failed.is_set()


def test_the_next_task_goes_on_when_the_one_that_drives_ends() -> None:
    async def run() -> None:
        reactor = current_reactor()
        scopes = [trio.CancelScope(), trio.CancelScope()]

        async def run_reactor(scope: trio.CancelScope, **arguments: Any) -> None:
            with scope:
                await reactor.run(**arguments)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for scope in scopes:
                    await nursery.start(run_reactor, scope)
                for scope in scopes:
                    called = trio.Event()
                    reactor.defer(called.set)
                    await called.wait()
                    scope.cancel()
                    await trio.sleep(0.01)
            assert not reactor.is_running

    run_event_loop(run)


def test_without_an_epoll_of_trio_the_reactors_own_task_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "find_epoll_of", lambda _: None)
    test_trios_descriptors_deadlines_and_threads_are_served()
    test_what_a_task_defers_is_called_before_the_loop_sleeps()
    test_steps_are_made_while_tasks_can_always_run()


def test_deferred_work_is_done_without_its_task() -> None:
    done: list[str] = []

    async def run(reactor: Reactor) -> None:
        work = DeferredWork(reactor, partial(_append_and_go_on, done))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work.wait)
            await trio.sleep(0.01)
            work.request()
            await trio.sleep(0.01)
            assert done == ["in a step"]
            work.wake()

    run_with_reactor(run)


def _append_and_go_on(done: list[str]) -> bool:
    done.append("in a step")
    return False


def test_an_epoll_is_found_by_what_it_watches() -> None:
    with closing(select.epoll()) as one, closing(select.epoll()) as other:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            one.register(ours.fileno(), select.EPOLLIN)
            other.register(theirs.fileno(), select.EPOLLIN)
            ours.send(b"x")
            found = find_epoll_of(theirs.fileno())
            assert found is not None
            with found:
                assert found.poll(0) == [(theirs.fileno(), select.EPOLLIN)]
                assert found.fileno() not in (one.fileno(), other.fileno())
            other.unregister(theirs.fileno())
            assert find_epoll_of(theirs.fileno()) is None
            # Both are as they were.
            assert one.poll(0) == other.poll(0) == []
            theirs.send(b"x")
            assert one.poll(0) == [(ours.fileno(), select.EPOLLIN)]


def test_a_driven_loop_closes_its_descriptors() -> None:
    async def run(reactor: Reactor) -> None:
        await trio.lowlevel.checkpoint()

    def lowest_free() -> int:
        os.close(descriptor := os.dup(0))
        return descriptor

    run_with_reactor(run)
    before = lowest_free()
    for _ in range(3):
        run_with_reactor(run)
    assert lowest_free() == before

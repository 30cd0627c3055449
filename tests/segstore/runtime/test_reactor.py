from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from functools import partial

import pytest
import trio
import trio.testing

from segstore.runtime.reactor import DeferredWork, Reactor, current_reactor


@pytest.fixture
async def reactor(nursery: trio.Nursery) -> Reactor:
    await nursery.start(current_reactor().run)
    return current_reactor()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def test_an_event_loop_has_one() -> None:
    assert current_reactor() is current_reactor()


def test_each_event_loop_has_its_own() -> None:
    async def find() -> Reactor:
        await trio.lowlevel.checkpoint()
        return current_reactor()

    assert trio.run(find) is not trio.run(find)


# ---- Steps ---------------------------------------------------------------------------------------


async def test_what_is_deferred_in_a_step_is_called_when_it_ends(reactor: Reactor) -> None:
    done: list[str] = []

    def step() -> None:
        reactor.defer(partial(done.append, "a"))
        reactor.defer(partial(done.append, "b"))
        assert done == []

    reactor.run_step(step)
    assert done == ["a", "b"]


async def test_what_a_deferred_call_defers_is_called_in_the_same_step(reactor: Reactor) -> None:
    done: list[str] = []

    def first() -> None:
        done.append("first")
        reactor.defer(partial(done.append, "deferred by the first"))

    def step() -> None:
        reactor.defer(first)
        reactor.defer(partial(done.append, "second"))

    reactor.run_step(step)
    assert done == ["first", "second", "deferred by the first"]


async def test_what_a_task_defers_is_called_in_the_next_round(reactor: Reactor) -> None:
    done: list[str] = []
    for text in ("a", "b"):
        reactor.defer(partial(done.append, text))
        assert done == []
        await trio.testing.wait_all_tasks_blocked()
        assert done.pop() == text


async def test_a_call_that_raises_ends_its_step_and_not_the_others(reactor: Reactor) -> None:
    done: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    def step() -> None:
        reactor.defer(fail)
        reactor.defer(partial(done.append, "after it"))

    with pytest.raises(ZeroDivisionError):
        reactor.run_step(step)
    await trio.testing.wait_all_tasks_blocked()
    assert done == ["after it"]
    reactor.defer(partial(done.append, "later"))
    await trio.testing.wait_all_tasks_blocked()
    assert done == ["after it", "later"]


# ---- Running -------------------------------------------------------------------------------------


async def test_it_knows_whether_it_is_running() -> None:
    reactor = current_reactor()
    assert not reactor.is_running
    async with trio.open_nursery() as nursery:
        await nursery.start(reactor.run)
        assert reactor.is_running
        nursery.cancel_scope.cancel()
    assert not reactor.is_running


async def test_what_is_deferred_while_it_ends_is_called() -> None:
    reactor = Reactor()
    done: list[str] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(reactor.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        assert reactor.is_running
        reactor.defer(partial(done.append, "late"))
    assert done == ["late"]
    assert not reactor.is_running


async def test_it_runs_as_long_as_one_of_several_tasks_runs_it(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    reactor = current_reactor()
    ours, theirs = sockets
    scopes = [trio.CancelScope(), trio.CancelScope()]
    done: list[str] = []

    async def run(scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with scope:
            await reactor.run(task_status=task_status)

    async with trio.open_nursery() as nursery:
        for scope in scopes:
            await nursery.start(run, scope)
        reactor.watch(ours.fileno(), lambda _: done.append(ours.recv(10).decode()))
        for name, scope in zip("ab", scopes, strict=True):
            reactor.defer(partial(done.append, name))
            await trio.testing.wait_all_tasks_blocked()
            assert done[-1] == name
            theirs.send(name.upper().encode())
            with trio.fail_after(60):
                while done[-1] != name.upper():
                    await trio.lowlevel.checkpoint()
            assert reactor.is_running
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
    assert not reactor.is_running


async def test_it_can_run_again() -> None:
    reactor, done = current_reactor(), list[int]()
    for number in range(3):
        async with trio.open_nursery() as nursery:
            await nursery.start(reactor.run)
            reactor.defer(partial(done.append, number))
            nursery.cancel_scope.cancel()
    assert done == [0, 1, 2]


# ---- Descriptors ---------------------------------------------------------------------------------


async def test_each_event_of_a_descriptor_is_told_once(
    reactor: Reactor, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = sockets
    events: list[int] = []
    reactor.watch(ours.fileno(), events.append)
    theirs.send(b"a")
    await trio.testing.wait_all_tasks_blocked(0.01)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert events == [select.EPOLLIN]
    theirs.send(b"b")
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert events == [select.EPOLLIN] * 2
    theirs.close()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert events[2] & select.EPOLLRDHUP
    reactor.unwatch(ours.fileno())


async def test_an_eventfd_need_not_be_read(reactor: Reactor) -> None:
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)
    events: list[int] = []
    reactor.watch(descriptor, events.append)
    for count in range(1, 4):
        os.eventfd_write(descriptor, 1)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(events) == count
    reactor.unwatch(descriptor)
    os.close(descriptor)


async def test_what_events_defer_is_called_after_all_of_them(reactor: Reactor) -> None:
    done: list[str] = []
    pairs = [socket.socketpair() for _ in range(3)]

    def on_event(name: str, _: int) -> None:
        done.append(name)
        reactor.defer(partial(done.append, "deferred"))

    for name, (ours, theirs) in zip("abc", pairs, strict=True):
        theirs.send(b"x")
        reactor.watch(ours.fileno(), partial(on_event, name))
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert sorted(done[:3]) == ["a", "b", "c"]
    assert done[3:] == ["deferred"] * 3
    for ours, theirs in pairs:
        reactor.unwatch(ours.fileno())
        ours.close()
        theirs.close()


async def test_nothing_is_told_of_a_descriptor_that_is_not_watched_any_more(
    reactor: Reactor, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = sockets
    events: list[int] = []
    reactor.watch(ours.fileno(), events.append)
    reactor.unwatch(ours.fileno())
    reactor.unwatch(ours.fileno())
    theirs.send(b"a")
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert events == []


# ---- Deferred work -------------------------------------------------------------------------------


class Owner:
    """A task that waits for work. Items in ``hard`` are left to the task, the others are done in
    steps."""

    def __init__(self, reactor: Reactor) -> None:
        self.deferred = DeferredWork(reactor, self._work)
        self.items: list[str] = []
        self.hard: list[str] = []
        self.done: list[str] = []
        self.step_count = 0

    def request(self, item: str, *, is_hard: bool = False) -> None:
        (self.hard if is_hard else self.items).append(item)
        self.deferred.request()

    def _work(self) -> bool:
        self.step_count += 1
        self._do(self.items, "step")
        return bool(self.hard)

    def _do(self, items: list[str], where: str) -> None:
        self.done += [f"{item} in {where}" for item in items]
        items.clear()

    async def run(self) -> None:
        while True:
            await self.deferred.wait()
            self._do(self.items, "task")
            self._do(self.hard, "task")


@pytest.fixture
async def owner(reactor: Reactor, nursery: trio.Nursery) -> Owner:
    owner = Owner(reactor)
    nursery.start_soon(owner.run)
    await trio.testing.wait_all_tasks_blocked()
    return owner


async def test_requests_of_a_step_are_done_together_when_it_ends(
    reactor: Reactor, owner: Owner
) -> None:
    def step() -> None:
        owner.request("a")
        owner.request("b")
        assert owner.done == []

    reactor.run_step(step)
    assert owner.done == ["a in step", "b in step"]
    assert owner.step_count == 1


async def test_the_task_is_resumed_for_what_has_to_wait(owner: Owner) -> None:
    owner.request("a", is_hard=True)
    await trio.testing.wait_all_tasks_blocked()
    assert owner.done == ["a in task"]
    owner.request("b")
    await trio.testing.wait_all_tasks_blocked()
    assert owner.done == ["a in task", "b in step"]


async def test_what_is_requested_after_the_task_was_resumed_is_left_to_it(
    reactor: Reactor, owner: Owner
) -> None:
    def step() -> None:
        owner.request("a", is_hard=True)
        reactor.defer(partial(owner.request, "b"))

    reactor.run_step(step)
    await trio.testing.wait_all_tasks_blocked()
    assert owner.done == ["b in task", "a in task"]


async def test_without_a_reactor_each_request_resumes_the_task(nursery: trio.Nursery) -> None:
    owner = Owner(Reactor())
    nursery.start_soon(owner.run)
    for item in ("a", "b"):
        await trio.testing.wait_all_tasks_blocked()
        owner.request(item)
    await trio.testing.wait_all_tasks_blocked()
    assert owner.done == ["a in task", "b in task"]


async def test_a_request_before_the_task_waits_is_kept(reactor: Reactor) -> None:
    work = DeferredWork(reactor, lambda: False)
    work.request()
    with trio.fail_after(60):
        await work.wait()
    with trio.move_on_after(0.01) as scope:
        await work.wait()
    assert scope.cancelled_caught


async def test_a_wake_that_is_forgotten_resumes_nobody(reactor: Reactor) -> None:
    work = DeferredWork(reactor, lambda: False)
    work.wake()
    work.forget_wake()
    with trio.move_on_after(0.01) as scope:
        await work.wait()
    assert scope.cancelled_caught


async def test_a_task_that_waits_for_requests_does_them_itself(reactor: Reactor) -> None:
    def work() -> bool:
        raise AssertionError("the task wants to do it")

    deferred = DeferredWork(reactor, work)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deferred.wait_for_request)
            await trio.testing.wait_all_tasks_blocked()
            deferred.request()


async def test_nothing_is_done_in_steps_for_a_task_that_was_cancelled(reactor: Reactor) -> None:
    calls: list[int] = []

    def work() -> bool:
        calls.append(1)
        return False

    deferred = DeferredWork(reactor, work)
    with trio.move_on_after(0.01):
        await deferred.wait()
    deferred.request()
    await trio.testing.wait_all_tasks_blocked()
    assert calls == []
    with trio.fail_after(60):
        await deferred.wait()


async def test_what_work_raises_is_raised_in_its_task(reactor: Reactor) -> None:
    def work() -> bool:
        raise ZeroDivisionError

    deferred = DeferredWork(reactor, work)
    with pytest.RaisesGroup(ZeroDivisionError), trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deferred.wait)
            await trio.testing.wait_all_tasks_blocked()
            reactor.run_step(deferred.request)
    assert isinstance(deferred.defect, ZeroDivisionError)


async def test_a_defect_elsewhere_is_raised_in_the_task_that_it_belongs_to(
    reactor: Reactor,
) -> None:
    deferred = DeferredWork(reactor, lambda: False)
    deferred.fail(ZeroDivisionError())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), trio.fail_after(60):
            await deferred.wait()
        deferred.wake()

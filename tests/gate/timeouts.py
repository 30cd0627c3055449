"""A pytest plugin that ends a test at its time limit inside of its trio loop.

pytest-timeout raises an error wherever the main thread is. When all tasks wait, that is between two
steps of trio's loop: the error leaves a loop behind that never ended, and the tests that follow in
the same process fail by it. So this plugin cancels the test's tasks there instead, and the test
fails when they have ended. Its report shows where each task waited.

Invariants:
1. A test that reaches its time limit fails, and the tests after it run as they would have. Held by
   ``test_a_test_that_waits_too_long_in_a_loop_fails_alone``.
2. Tasks that do not end after a cancellation are ended as pytest-timeout does. Held by
   ``test_a_test_that_refuses_to_end_fails``.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import trio

CANCEL_SECONDS_MAX = 10.0
"""After this, tasks that were cancelled are ended by an error."""

_TIMED_OUT = pytest.StashKey[str]()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Iterator[None]:
    """Put a handler that knows trio before that of pytest-timeout."""
    result = yield
    raise_timeout = signal.getsignal(signal.SIGALRM)
    if callable(raise_timeout):
        signal.signal(signal.SIGALRM, partial(end_test, item, settings.timeout, raise_timeout))
    return result


def end_test(
    item: pytest.Item,
    seconds: float,
    raise_timeout: Callable[[int, Any], Any],
    number: int,
    frame: Any,
) -> None:
    """End a test whose time is over: the handler of the alarm."""
    if not trio.lowlevel.in_trio_run() or trio.lowlevel.in_trio_task():
        raise_timeout(number, frame)
        return
    root = trio.lowlevel.current_root_task()
    assert root is not None, "it exists while the loop runs"
    item.stash[_TIMED_OUT] = f"Timeout (>{seconds:.0f} s); its tasks waited here:\n" + "\n".join(
        describe_tasks(root)
    )
    signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, CANCEL_SECONDS_MAX)
    # The last nursery has the main task; those before it are trio's own.
    trio.lowlevel.current_trio_token().run_sync_soon(root.child_nurseries[-1].cancel_scope.cancel)


def describe_tasks(task: trio.lowlevel.Task) -> Iterator[str]:
    """Say of a task and all its descendants where they wait."""
    yield f"task {task.name}"
    yield from traceback.StackSummary.extract(task.iter_await_frames(), limit=-8).format()
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from describe_tasks(child)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that was ended, whatever its tasks made of their cancellation."""
    try:
        result = yield
    except BaseException as error:
        if _TIMED_OUT in item.stash:
            raise pytest.fail.Exception(item.stash[_TIMED_OUT]) from error
        raise
    if _TIMED_OUT in item.stash:
        pytest.fail(item.stash[_TIMED_OUT])
    return result

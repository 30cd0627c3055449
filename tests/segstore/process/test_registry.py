from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from segstore.api import SegmentContainer
from segstore.errors import (
    ContainerOfflineError,
    DataDirectoryError,
    LogBehindError,
    WrongHostError,
)
from segstore.process.registry import OPENING_SECONDS_MAX, ContainerRegistry, ContainerState
from segstore.tables.settings import TableSettings
from support.models.memory_container import MemoryContainer

IN_CONTAINER_0 = "examples/test/0"
IN_CONTAINER_1 = "examples/test/1"
IN_CONTAINER_3 = "scope/stream/0"


class Host:
    """An opener of containers: ``before`` may fail or wait, ``fail`` ends an open one."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.before: dict[int, Callable[[], None]] = {}
        self.failures: dict[int, trio.Event] = {}
        self.open_now: set[int] = set()

    @asynccontextmanager
    async def open_container(self, number: int) -> AsyncIterator[SegmentContainer]:
        self.opened.append(number)
        self.before.get(number, lambda: None)()
        self.failures[number] = trio.Event()
        self.open_now.add(number)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fail_when_told, number)
                yield MemoryContainer(number)
                nursery.cancel_scope.cancel()
        finally:
            self.open_now.discard(number)

    async def _fail_when_told(self, number: int) -> None:
        await self.failures[number].wait()
        raise OSError(f"container {number} broke")

    def registry(self, *numbers: int, is_fixed: bool = True) -> ContainerRegistry:
        return ContainerRegistry(
            self.open_container,
            container_count=4,
            container_ids=numbers if is_fixed else None,
            tables=TableSettings(),
            restart_seconds_min=1,
            restart_seconds_max=4,
        )


@asynccontextmanager
async def running(registry: ContainerRegistry) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(registry.run)
        await registry.wait_until_tried()
        yield
        nursery.cancel_scope.cancel()


async def test_segments_are_found_by_their_container() -> None:
    registry = Host().registry(0, 1, 2, 3)
    async with running(registry):
        assert registry.online_count == 4
        for segment, number in ((IN_CONTAINER_0, 0), (IN_CONTAINER_1, 1), (IN_CONTAINER_3, 3)):
            assert registry.container_for(segment).container_id == number
        transaction = f"{IN_CONTAINER_3}.#epoch.0#transaction.{'0' * 32}"
        assert registry.container_for(transaction) is registry.container_for(IN_CONTAINER_3)
        assert registry.tables_for(IN_CONTAINER_3) is registry.tables_for(transaction)


async def test_segments_of_containers_that_are_not_hosted_are_elsewhere() -> None:
    registry = Host().registry(0)
    async with running(registry):
        with pytest.raises(WrongHostError) as caught:
            registry.container_for(IN_CONTAINER_1)
        assert caught.value.segment == IN_CONTAINER_1


async def test_a_container_is_offline_before_it_is_open_and_after_the_end() -> None:
    registry = Host().registry(0)
    with pytest.raises(ContainerOfflineError):
        registry.container_for(IN_CONTAINER_0)
    async with running(registry):
        registry.container_for(IN_CONTAINER_0)
    with pytest.raises(ContainerOfflineError):
        registry.tables_for(IN_CONTAINER_0)


async def test_a_failed_container_is_logged_and_recovered_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    host = Host()
    registry = host.registry(0, 1)
    async with running(registry):
        first = registry.container_for(IN_CONTAINER_0)
        other = registry.container_for(IN_CONTAINER_1)
        with capture_logs() as logs:
            host.failures[0].set()
            await trio.testing.wait_all_tasks_blocked()
        assert [(line["event"], line["container"]) for line in logs] == [("container failed", 0)]
        with pytest.raises(ContainerOfflineError):
            registry.container_for(IN_CONTAINER_0)
        assert registry.container_for(IN_CONTAINER_1) is other
        await registry.find(IN_CONTAINER_0).wait_online()
        assert registry.container_for(IN_CONTAINER_0) is not first
    assert sorted(host.opened) == [0, 0, 1]
    assert not host.open_now


async def test_recovery_that_fails_is_tried_again_more_and_more_slowly(
    autojump_clock: trio.testing.MockClock,
) -> None:
    host = Host()
    times: list[float] = []

    def fail_four_times() -> None:
        times.append(trio.current_time())
        if len(times) <= 4:
            raise OSError("no")

    host.before[0] = fail_four_times
    registry = host.registry(0, 1)
    async with running(registry):
        registry.container_for(IN_CONTAINER_1)
        with pytest.raises(ContainerOfflineError):
            registry.container_for(IN_CONTAINER_0)
        await registry.find(IN_CONTAINER_0).wait_online()
    assert [round(later - earlier) for earlier, later in pairwise(times)] == [
        1,
        2,
        4,
        4,
    ]


async def test_after_a_good_time_the_pause_is_short_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    host = Host()
    registry = host.registry(0)
    async with running(registry):
        for _ in range(3):
            started = trio.current_time()
            host.failures[0].set()
            await trio.testing.wait_all_tasks_blocked()
            await registry.find(IN_CONTAINER_0).wait_online()
            assert trio.current_time() - started == pytest.approx(1, abs=0.1)


async def test_an_unusable_data_directory_ends_everything() -> None:
    host = Host()

    def refuse() -> None:
        raise DataDirectoryError("of another version")

    host.before[0] = refuse
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(host.registry(0, 1)):
            await trio.sleep_forever()
    assert caught.group_contains(DataDirectoryError)


# ---- Containers that come and go -----------------------------------------------------------------


async def test_containers_are_hosted_and_released() -> None:
    host = Host()
    registry = host.registry(is_fixed=False)
    stopped: list[frozenset[int]] = []
    registry.on_stopped = lambda: stopped.append(registry.hosted_numbers())
    async with running(registry):
        with pytest.raises(WrongHostError):
            registry.container_for(IN_CONTAINER_0)
        registry.host(0)
        registry.host(1)
        with pytest.raises(ContainerOfflineError):
            registry.container_for(IN_CONTAINER_0)
        await registry.find(IN_CONTAINER_0).wait_online()
        await registry.find(IN_CONTAINER_1).wait_online()
        registry.release(0)
        with pytest.raises(WrongHostError):
            registry.container_for(IN_CONTAINER_0)
        assert registry.numbers() == {1}
        assert registry.hosted_numbers() == {0, 1}
        await trio.testing.wait_all_tasks_blocked()
        assert stopped == [frozenset({1})]
        assert host.open_now == {1}
        registry.host(0)
        await registry.find(IN_CONTAINER_0).wait_online()
    assert sorted(host.opened) == [0, 0, 1]


async def test_a_container_that_fails_while_it_is_released_harms_nobody() -> None:
    host = Host()
    registry = host.registry(is_fixed=False)
    async with running(registry):
        registry.host(0)
        registry.host(1)
        await registry.find(IN_CONTAINER_0).wait_online()
        host.failures[0].set()
        registry.release(0)
        await trio.testing.wait_all_tasks_blocked()
        assert registry.hosted_numbers() == {1}
        assert host.open_now == {1}


async def test_without_hope_a_member_of_a_cluster_goes_on() -> None:
    host = Host()

    def refuse() -> None:
        raise LogBehindError("an older copy")

    host.before[0] = refuse
    registry = host.registry(is_fixed=False)
    async with running(registry):
        registry.host(0)
        await trio.testing.wait_all_tasks_blocked()
        assert registry.hosted(0).status.state is ContainerState.OFFLINE
        registry.host(1)
        await registry.find(IN_CONTAINER_1).wait_online()
        del host.before[0]
        registry.release(0)
        await trio.testing.wait_all_tasks_blocked()
        registry.host(0)
        await registry.find(IN_CONTAINER_0).wait_online()


async def test_who_asks_for_a_container_that_is_being_opened_waits_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The official clients would ask again after a second, and then after ten more."""
    opened = trio.Event()

    @asynccontextmanager
    async def open_container(number: int) -> AsyncIterator[SegmentContainer]:
        await opened.wait()
        yield MemoryContainer(number)

    host = Host()
    host.open_container = open_container  # type: ignore[method-assign]
    registry = host.registry(is_fixed=False)
    async with running(registry):
        registry.host(0)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await registry.wait_opened(IN_CONTAINER_0)
        assert trio.current_time() == began + OPENING_SECONDS_MAX
        with pytest.raises(ContainerOfflineError):
            registry.container_for(IN_CONTAINER_0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(registry.wait_opened, IN_CONTAINER_0)
            await trio.sleep(1)
            opened.set()
        assert trio.current_time() == began + OPENING_SECONDS_MAX + 1
        assert registry.container_for(IN_CONTAINER_0).container_id == 0
        await registry.wait_opened(IN_CONTAINER_0)
        with pytest.raises(WrongHostError):
            await registry.wait_opened(IN_CONTAINER_1)


async def test_nobody_waits_for_a_container_that_was_released_or_cannot_be_opened(
    autojump_clock: trio.testing.MockClock,
) -> None:
    host = Host()

    def refuse() -> None:
        raise OSError("no disk")

    host.before[0] = refuse
    registry = host.registry(is_fixed=False)
    async with running(registry):
        registry.host(0)
        await trio.sleep(0.1)
        began = trio.current_time()
        await registry.wait_opened(IN_CONTAINER_0)
        assert trio.current_time() == began
        registry.release(0)
        with pytest.raises(WrongHostError):
            await registry.wait_opened(IN_CONTAINER_0)


async def test_who_waits_for_a_container_is_answered_when_it_is_released(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @asynccontextmanager
    async def open_container(number: int) -> AsyncIterator[SegmentContainer]:
        await trio.sleep_forever()
        yield MemoryContainer(number)

    host = Host()
    host.open_container = open_container  # type: ignore[method-assign]
    registry = host.registry(is_fixed=False)
    async with running(registry):
        registry.host(0)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(registry.wait_opened, IN_CONTAINER_0)
            await trio.sleep(1)
            registry.release(0)
        assert trio.current_time() == began + 1


async def test_containers_that_cannot_be_opened_are_told_with_their_reason(
    autojump_clock: trio.testing.MockClock,
) -> None:
    host = Host()

    def refuse() -> None:
        raise OSError("a ledger needs 2 bookies, 1 take writes")

    host.before = {1: refuse, 3: refuse}
    async with trio.open_nursery() as nursery:
        registry = host.registry(0, 1, 3)
        await nursery.start(registry.run)
        await registry.wait_until_tried()
        assert registry.delay_reasons() == [
            "containers are offline (1, 3): OSError: a ledger needs 2 bookies, 1 take writes"
        ]
        host.before = {}
        await registry.hosted(1).wait_online()
        await registry.hosted(3).wait_online()
        assert registry.delay_reasons() == []
        nursery.cancel_scope.cancel()

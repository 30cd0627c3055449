"""A tier 2 whose calls are measured.

Owns: ``MeasuredChunkStorage``, which has the behaviour of the storage that it wraps, and records
how long each call takes, whether it fails, and how many bytes it moves.

Invariants:
1. When a call of the wrapped storage fails, the error is that of the storage, and the call is
   recorded with the error's kind. Held by ``test_a_call_that_fails_is_recorded_by_its_error``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from _fast.metrics.recorders import now_ns
from pravega_metrics.store_metrics import TIER2_BYTES, TIER2_SECONDS
from segstore.tiers.api import Buffer, Check, ChunkInfo, ChunkStorage


class MeasuredChunkStorage(ChunkStorage):
    """See the module."""

    def __init__(self, storage: ChunkStorage) -> None:
        self._storage = storage

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        length = sum(map(len, data))
        with _measured("write"):
            await self._storage.write(name, offset=offset, data=data, meanwhile=meanwhile)
        TIER2_BYTES.of("write").add(length)

    async def read(
        self, name: str, *, offset: int, length: int, check: Check | None = None
    ) -> Buffer:
        with _measured("read"):
            data = await self._storage.read(name, offset=offset, length=length, check=check)
        TIER2_BYTES.of("read").add(length)
        return data

    async def info(self, name: str) -> ChunkInfo:
        with _measured("info"):
            return await self._storage.info(name)

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        with _measured("lengths"):
            return await self._storage.lengths(names)

    async def delete(self, name: str) -> None:
        with _measured("delete"):
            await self._storage.delete(name)

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        with _measured("list"):
            return await self._storage.list_chunks(prefix)


@contextmanager
def _measured(call: str) -> Iterator[None]:
    began, result = now_ns(), "ok"
    try:
        yield
    except BaseException as error:  # also when it is cancelled
        result = type(error).__name__
        raise
    finally:
        TIER2_SECONDS.of(call, result).record_since(began)

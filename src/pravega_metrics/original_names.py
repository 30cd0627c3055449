"""The original's names of metrics that mean what ours mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pravega_metrics import controller_metrics, store_metrics


@dataclass(frozen=True, slots=True)
class OriginalName:
    """A metric of the original that is one of ours, for readings with some values of labels.

    ``labels`` gives for each of its labels ours with the same value.
    """

    name: str
    where: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


_STORE: Final = "pravega_segmentstore_"
_CONTAINER: Final = {"container": "container"}
_STREAM: Final = {"scope": "scope", "stream": "stream"}
_TABLE_REQUESTS: Final = {
    "UpdateTableEntries": "update",
    "RemoveTableKeys": "remove",
    "ReadTable": "get",
    "ReadTableKeys": "iterate_keys",
    "ReadTableEntries": "iterate_entries",
    "GetTableSegmentInfo": "get_info",
}


def _rpc(method: str, name: str) -> OriginalName:
    return OriginalName(
        f"pravega_controller_{name}_latency_ms_seconds", {"method": method, "code": "OK"}
    )


ORIGINAL_NAMES: Final[Mapping[str, tuple[OriginalName, ...]]] = {
    store_metrics.APPEND_SECONDS.name: (OriginalName(f"{_STORE}segment_write_latency_ms_seconds"),),
    store_metrics.APPEND_BYTES.name: (OriginalName(f"{_STORE}segment_write_bytes_global"),),
    store_metrics.APPEND_EVENTS.name: (OriginalName(f"{_STORE}segment_write_events_global"),),
    store_metrics.READ_SECONDS.name: (
        OriginalName(f"{_STORE}segment_read_latency_ms_seconds", {"waited": "no"}),
    ),
    store_metrics.READ_BYTES.name: (OriginalName(f"{_STORE}segment_read_bytes_global"),),
    store_metrics.STREAM_BYTES.name: (
        OriginalName(f"{_STORE}segment_write_bytes", labels=_STREAM),
    ),
    store_metrics.STREAM_EVENTS.name: (
        OriginalName(f"{_STORE}segment_write_events", labels=_STREAM),
    ),
    store_metrics.REQUEST_SECONDS.name: (
        OriginalName(
            f"{_STORE}segment_create_latency_ms_seconds",
            {"request": "CreateSegment", "result": "served"},
        ),
        *(
            OriginalName(
                f"{_STORE}tablesegment_{name}_latency_ms_seconds",
                {"request": request, "result": "served"},
            )
            for request, name in _TABLE_REQUESTS.items()
        ),
    ),
    store_metrics.TIER2_SECONDS.name: tuple(
        OriginalName(f"{_STORE}storage_{call}_latency_ms_seconds", {"call": call, "result": "ok"})
        for call in ("read", "write", "delete")
    ),
    store_metrics.TIER2_BYTES.name: tuple(
        OriginalName(f"{_STORE}storage_{call}_bytes", {"call": call}) for call in ("read", "write")
    ),
    store_metrics.JOURNAL_SECONDS.name: (
        OriginalName(f"{_STORE}bookkeeper_write_latency_ms_seconds"),
    ),
    store_metrics.ACTIVE_SEGMENTS.name: (
        OriginalName(f"{_STORE}container_active_segments", labels=_CONTAINER),
    ),
    store_metrics.CACHE_BYTES.name: (
        OriginalName(f"{_STORE}cache_stored_size_bytes", {"kind": "data"}),
        OriginalName(f"{_STORE}cache_used_size_bytes", {"kind": "entries"}),
    ),
    controller_metrics.RPC_SECONDS.name: (
        _rpc("createScope", "scope_created"),
        _rpc("deleteScope", "scope_deleted"),
        _rpc("createStream", "stream_created"),
        _rpc("sealStream", "stream_sealed"),
        _rpc("deleteStream", "stream_deleted"),
        _rpc("updateStream", "stream_updated"),
        _rpc("truncateStream", "stream_truncated"),
        _rpc("createTransaction", "transactions_created"),
        _rpc("commitTransaction", "transactions_committing"),
        _rpc("abortTransaction", "transactions_aborting"),
        _rpc("createKeyValueTable", "kvtable_created"),
        _rpc("deleteKeyValueTable", "kvtable_deleted"),
    ),
}
"""The original's metrics by the name of ours."""

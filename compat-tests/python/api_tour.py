"""Every class and method of the official Python client once: ``python api_tour.py CONTROLLER``.

It needs nothing but the client and runs with every Python that the client has wheels for, 3.8 to
3.11, which is why it is written for 3.8. Each step prints ``ok NAME`` or ends with its error.
"""

import asyncio
import sys
import time
import uuid

import pravega_client

READ_SECONDS_MAX = 60.0


def make_policies(streams, scope):
    scaling = pravega_client.StreamScalingPolicy
    retention = pravega_client.StreamRetentionPolicy
    for name, policy in (
        ("fixed", scaling.fixed_scaling_policy(2)),
        ("by-data", scaling.auto_scaling_policy_by_data_rate(100, 2, 3)),
        ("by-events", scaling.auto_scaling_policy_by_event_rate(100, 2, 3)),
    ):
        assert streams.create_stream_with_policy(scope, name, policy, retention.none(), ["new"])
        assert not streams.create_stream_with_policy(scope, name, policy)
        assert streams.get_stream_tags(scope, name) == ["new"]
        for kept in (retention.by_size(1 << 20), retention.by_time(60_000), retention.none()):
            tags = ["a", "b"]
            assert streams.update_stream_with_policy(scope, name, policy, kept, tags)
            assert sorted(streams.get_stream_tags(scope, name)) == tags


def list_scopes_and_streams(streams, scope):
    assert scope in streams.list_scope()
    for name in ("one", "two"):
        assert streams.create_stream(scope, name, 1)
    names = [name for name in streams.list_stream(scope) if not name.startswith("_")]
    assert sorted(names) == ["one", "two"]
    assert "://" in streams.to_str()


def write_in_every_way(streams, scope):
    streams.create_stream(scope, "ways", 1)
    writer = streams.create_writer(scope, "ways", max_inflight_events=2)
    writer.write_event("text", routing_key="key")
    writer.write_event("without a key")
    writer.write_event_bytes(b"bytes", routing_key="key")
    writer.flush()

    async def write_more():
        for number in range(10):
            await writer.write_event_async(f"later {number}", routing_key="key")

    asyncio.run(write_more())
    writer.flush()
    assert "ways" in writer.to_str()
    group = streams.create_reader_group("ways", scope, "ways")
    expected = [b"text", b"without a key", b"bytes"]
    expected += [f"later {number}".encode() for number in range(10)]
    assert read(group, expected[-1]) == expected
    streams.delete_reader_group("ways", scope)


def start_reading_anywhere(streams, scope):
    streams.create_stream(scope, "places", 1)
    writer = streams.create_writer(scope, "places")
    writer.write_event("first")
    writer.flush()
    group = streams.create_reader_group("head", scope, "places")
    assert "head" in group.to_str()
    assert read(group, b"first") == [b"first"]
    cut = group.get_streamcut()
    assert cut.get_segment_offset_map() == {0: 8 + len("first")}, cut.to_str()
    writer.write_event("second")
    writer.flush()
    at_cut = streams.create_reader_group("cut", scope, "places", False, cut)
    assert read(at_cut, b"second") == [b"second"]
    at_tail = streams.create_reader_group("tail", scope, "places", True)
    writer.write_event("third")
    writer.flush()
    assert read(at_tail, b"third") == [b"third"]
    config = pravega_client.StreamReaderGroupConfig(False, scope, "places")
    assert "places" in config.to_str()
    group = streams.create_reader_group_with_config("config", scope, config)
    assert read(group, b"third") == [b"first", b"second", b"third"]


def hand_segments_over(streams, scope):
    """Check that a reader declared offline leaves its segments to the next, from its last known
    position."""
    streams.create_stream(scope, "over", 1)
    writer = streams.create_writer(scope, "over")
    writer.write_event("for the first")
    writer.flush()
    group = streams.create_reader_group("over", scope, "over")
    assert read(group, b"for the first", name="first", leave=False) == [b"for the first"]
    group.reader_offline("first")
    writer.write_event("for the second")
    writer.flush()
    events = read(group, b"for the second", name="second")
    assert events in ([b"for the first", b"for the second"], [b"for the second"])


def use_transactions(streams, scope):
    streams.create_stream(scope, "whole", 2)
    writer = streams.create_transaction_writer(scope, "whole", 7)
    assert "whole" in writer.to_str()
    kept, dropped = writer.begin_txn(), writer.begin_txn()
    assert kept.get_txn_id() != dropped.get_txn_id()
    assert str(kept.to_str())
    kept.write_event("text", routing_key="key")
    kept.write_event_bytes(b"bytes", routing_key="key")
    dropped.write_event("never")
    assert writer.get_txn(kept.get_txn_id()).is_open()
    dropped.abort()
    kept.commit_timestamp(1)
    try:
        dropped.write_event("too late")
    except pravega_client.TxnFailedException:
        pass
    else:
        raise AssertionError("an aborted transaction took an event")
    group = streams.create_reader_group("whole", scope, "whole")
    assert read(group, b"bytes") == [b"text", b"bytes"]


def use_a_byte_stream(streams, scope):
    streams.create_stream(scope, "file", 1)
    stream = streams.create_byte_stream(scope, "file")
    assert stream.write(b"0123456789") == 10
    stream.flush()
    assert (stream.current_head_offset(), stream.current_tail_offset()) == (0, 10)
    assert stream.seekable()
    assert "file" in stream.to_str()
    assert (stream.seek(2, 0), stream.seek(2, 1), stream.tell()) == (2, 4, 4)
    assert stream.seek(-3, 2) == 7
    buffer = bytearray(10)
    assert stream.readinto(buffer) == 3
    assert buffer[:3] == b"789"
    stream.truncate(4)
    assert stream.current_head_offset() == 4


def read(group, last, name="reader", leave=True):
    """Read with a reader of that name up to an event; then it leaves the group, or does not."""

    async def read_slices():
        reader = group.create_reader(name)
        assert reader.to_str()
        events = []
        deadline = time.monotonic() + READ_SECONDS_MAX
        while last not in events and time.monotonic() < deadline:
            slice_ = await reader.get_segment_slice_async()
            if slice_ is not None:
                events += [bytes(event.data()) for event in slice_]
                reader.release_segment(slice_)
        if leave:
            reader.reader_offline()
        return events

    return asyncio.run(read_slices())


STEPS = (
    make_policies,
    list_scopes_and_streams,
    write_in_every_way,
    start_reading_anywhere,
    hand_segments_over,
    use_transactions,
    use_a_byte_stream,
)


def main():
    is_secure = sys.argv[1].startswith("tls:")
    streams = pravega_client.StreamManager(sys.argv[1], is_secure, is_secure)
    for step in STEPS:
        scope = f"tour-{uuid.uuid4().hex[:8]}"
        assert streams.create_scope(scope)
        step(streams, scope)
        print("ok", step.__name__.replace("_", " "), flush=True)


if __name__ == "__main__":
    main()

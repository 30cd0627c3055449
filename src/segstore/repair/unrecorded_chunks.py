"""Adds chunks that damaged metadata lack, by the information in the names of chunks.

Owns: ``add_unrecorded_chunks``.

The name of a chunk has the name of its segment, the offset of its first byte, and the epoch of the
owner that created it (``new_chunk_name``). A chunk that a merge moved to another segment keeps its
name; only the metadata or the log say where its bytes are now.

Invariants:
1. Chunks that the metadata record stay recorded, and chunks that they have given up are not added.
   Held by ``test_what_the_metadata_have_stays_and_what_they_gave_up_counts_not``.
2. Where two chunks have the same bytes, the one with the later epoch counts, because its owner knew
   how much of the earlier one was good. Held by
   ``test_a_later_owner_knew_how_far_an_earlier_chunk_was_good``.
3. When the chunk with the later epoch has lost bytes, an earlier one does not take their place:
   what it has there was given up before. Held by
   ``test_bytes_that_a_later_chunk_lost_are_not_those_of_an_earlier_one``.
4. The range of a recorded chunk stays recorded when its bytes are missing, at the beginning and at
   the end of a segment too: otherwise it would be neither found nor reported as lost. Held by
   ``test_a_recorded_chunk_that_is_missing_keeps_its_range``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from pravega_wire.names import container_of
from segstore.chunks.records import Chunk, StoredSegment
from segstore.chunks.system_journal import StoredState
from segstore.repair.pieces import found_length

_NAME: Final = re.compile(r"(.+)\$([0-9]{20})\.E([0-9]+)\.[0-9]+", re.ASCII | re.DOTALL)


def add_unrecorded_chunks(
    state: StoredState, container_id: int, container_count: int, lengths: Mapping[str, int]
) -> tuple[StoredState, frozenset[str]]:
    """Add to a container's metadata the chunks in ``lengths`` that it lacks.

    Return the state with these chunks and with the latest epoch of all chunks, and the names of the
    segments whose first chunk was added: chunks before it may be missing.
    """
    metadata, epoch = state.metadata, state.epoch
    recorded = {*metadata.chunk_names(), *metadata.condemned}
    unrecorded: defaultdict[str, list[Chunk]] = defaultdict(list)
    for name, length in lengths.items():
        match = _NAME.fullmatch(name)
        segment = match[1].rpartition(".S-")[0] if match else ""
        if not match or not segment or container_of(segment, container_count) != container_id:
            continue
        chunk = Chunk(int(match[2]), length, name, int(match[3]))
        epoch = max(epoch, chunk.epoch)
        if length and name not in recorded:
            unrecorded[match[1]].append(chunk)
    begun: set[str] = set()
    for segment, chunks in unrecorded.items():
        record = metadata.get(segment)
        if record is not None and record.is_moved:
            continue
        known = record.chunks if record is not None else ()
        joined = _join([*known, *chunks], lengths)
        if not joined:
            continue
        metadata.put(segment, StoredSegment(tuple(joined), joined[-1].end))
        if joined[0].name not in recorded:
            begun.add(segment)
    return replace(state, epoch=epoch), frozenset(begun)


def _join(chunks: Iterable[Chunk], lengths: Mapping[str, int]) -> list[Chunk]:
    """Return the chunks by offset, each shortened where a later chunk overlaps it. There may be
    gaps between them. A recorded chunk of which bytes are missing keeps its recorded length, so
    that their range counts as missing and not as truncated."""
    joined: list[Chunk] = []
    end = 0
    for chunk in sorted(chunks, key=lambda each: (each.start, each.epoch, each.length)):
        last = joined[-1] if joined else None
        length = max(chunk.length, found_length(chunk, lengths))
        if last is not None and chunk.start < end:
            if chunk.epoch < last.epoch or (chunk.epoch == last.epoch and chunk.end <= end):
                continue
            joined.pop()
            if chunk.start > last.start:
                joined.append(last.cut(min(last.length, chunk.start - last.start)))
        joined.append(replace(chunk, length=length, is_open=False))
        end = chunk.start + length
    return [chunk for chunk in joined if chunk.length]

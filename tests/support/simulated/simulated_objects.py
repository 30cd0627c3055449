"""An object store in memory, and the network to it, for simulations.

Owns: ``SimulatedBucket``, which answers as boto3's client does, and ``ObjectNetwork``, which loses
requests, loses replies, and delivers requests late.

Invariants:
1. A request takes effect whole and in one step, whenever it arrives; listings are consistent.
2. A request that is late arrives even when its sender is dead.
"""

from __future__ import annotations

import datetime
import hashlib
import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import format_datetime
from enum import Enum, auto
from random import Random
from typing import Any, TypeVar

import trio
from botocore.exceptions import ClientError

from segstore.tiers.s3.failures import REQUEST_ERRORS

T = TypeVar("T")

LATE_SECONDS_MAX = 20.0


@dataclass(frozen=True, slots=True)
class _Object:
    body: bytes
    metadata: Mapping[str, str]


@dataclass(slots=True)
class _Upload:
    key: str
    metadata: Mapping[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class SimulatedBucket:
    """The methods of boto3's client that are used, on one bucket. ``objects`` is what is there, at
    most ``capacity_bytes`` if that is set, and ``now`` the server's clock."""

    def __init__(self, now: Callable[[], datetime.datetime] = _now) -> None:
        self._now = now
        self.objects: dict[str, _Object] = {}
        self.capacity_bytes: int | None = None
        self.refused_count = 0
        self._uploads: dict[str, _Upload] = {}
        self._upload_count = 0

    def put_object(self, **arguments: Any) -> Mapping[str, Any]:
        """Store an object, unless it exists and must not."""
        key = arguments["Key"]
        if arguments.get("IfNoneMatch") == "*" and key in self.objects:
            raise answer_error("PreconditionFailed", 412)
        self._store(key, _Object(bytes(arguments["Body"]), dict(arguments["Metadata"])))
        return {}

    @property
    def used_bytes(self) -> int:
        """Return the length of all objects together."""
        return sum(len(each.body) for each in self.objects.values())

    def _store(self, key: str, new: _Object) -> None:
        old = self.objects.get(key)
        added = len(new.body) - (len(old.body) if old is not None else 0)
        if self.capacity_bytes is not None and added > self.capacity_bytes - self.used_bytes:
            self.refused_count += 1
            raise answer_error("QuotaExceeded", 403)
        self.objects[key] = new

    def get_object(self, **arguments: Any) -> Mapping[str, Any]:
        """Return all of an object, or a range."""
        body = self._object(arguments["Key"], "NoSuchKey").body
        answer: dict[str, Any] = {}
        part = body
        if "Range" in arguments:
            first, _, last = arguments["Range"].removeprefix("bytes=").partition("-")
            part = body[int(first) : int(last) + 1]
            end = int(first) + len(part) - 1
            answer["ContentRange"] = f"bytes {first}-{end}/{len(body)}"
        return answer | {"Body": io.BytesIO(part), "ContentLength": len(part)}

    def head_object(self, **arguments: Any) -> Mapping[str, Any]:
        """Return length and metadata."""
        found = self._object(arguments["Key"], "404")
        return {"ContentLength": len(found.body), "Metadata": dict(found.metadata)}

    def delete_object(self, **arguments: Any) -> Mapping[str, Any]:
        """Delete, whether it is there or not."""
        self.objects.pop(arguments["Key"], None)
        return {}

    def list_objects_v2(self, **arguments: Any) -> Mapping[str, Any]:
        """Return a page of the keys."""
        after = arguments.get("ContinuationToken", "")
        keys = sorted(
            key for key in self.objects if key.startswith(arguments["Prefix"]) and key > after
        )
        page = keys[: arguments["MaxKeys"]]
        answer: dict[str, Any] = {
            "Contents": [{"Key": key, "Size": len(self.objects[key].body)} for key in page],
            "IsTruncated": len(page) < len(keys),
        }
        return answer | ({"NextContinuationToken": page[-1]} if len(page) < len(keys) else {})

    def create_multipart_upload(self, **arguments: Any) -> Mapping[str, Any]:
        """Begin to join objects."""
        self._upload_count += 1
        upload_id = f"upload-{self._upload_count}"
        self._uploads[upload_id] = _Upload(arguments["Key"], dict(arguments["Metadata"]))
        return {"UploadId": upload_id}

    def upload_part_copy(self, **arguments: Any) -> Mapping[str, Any]:
        """Add a part from another object."""
        body = self._object(arguments["CopySource"]["Key"], "NoSuchKey").body
        self._upload(arguments).parts[arguments["PartNumber"]] = body
        tag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        return {"CopyPartResult": {"ETag": tag}}

    def complete_multipart_upload(self, **arguments: Any) -> Mapping[str, Any]:
        """Store the joined object."""
        upload = self._upload(arguments)
        numbers = [part["PartNumber"] for part in arguments["MultipartUpload"]["Parts"]]
        body = b"".join(upload.parts[number] for number in numbers)
        self._store(upload.key, _Object(body, upload.metadata))
        del self._uploads[arguments["UploadId"]]
        return {}

    def abort_multipart_upload(self, **arguments: Any) -> Mapping[str, Any]:
        """Abandon an upload."""
        self._upload(arguments)
        del self._uploads[arguments["UploadId"]]
        return {}

    def list_multipart_uploads(self, **arguments: Any) -> Mapping[str, Any]:
        """Return the uploads that were begun and not ended."""
        began = self._now()
        return {
            "ResponseMetadata": {"HTTPHeaders": {"date": format_datetime(began, usegmt=True)}},
            "Uploads": [
                {"Key": upload.key, "UploadId": upload_id, "Initiated": began}
                for upload_id, upload in self._uploads.items()
            ],
        }

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _object(self, key: str, code: str) -> _Object:
        if key not in self.objects:
            raise answer_error(code, 404)
        return self.objects[key]

    def _upload(self, arguments: Mapping[str, Any]) -> _Upload:
        if arguments["UploadId"] not in self._uploads:
            raise answer_error("NoSuchUpload", 404)
        return self._uploads[arguments["UploadId"]]


def answer_error(code: str, status: int) -> ClientError:
    """Return the exception that boto3 raises for an answer that is an error."""
    response = {
        "Error": {"Code": code, "Message": "simulated"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "Simulated")


class ObjectFault(Enum):
    """The fault of one request."""

    NONE = auto()
    NOT_SENT = auto()
    SLOW_DOWN = auto()
    REPLY_LOST = auto()
    LATE = auto()
    """Its sender gives up waiting; it arrives later."""


class LateRequests:
    """Requests that are under way and for which no sender waits. They outlive their senders.

    ``delivered_count`` says how many have arrived.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self.delivered_count = 0
        self._requests: list[tuple[float, Callable[[], object]]] = []

    def add(self, call: Callable[[], object]) -> None:
        """Add a request that arrives later."""
        at = trio.current_time() + self._random.random() * LATE_SECONDS_MAX
        self._requests.append((at, call))

    def deliver(self, *, everything: bool = False) -> None:
        """Deliver the requests whose time has come."""
        now = trio.current_time()
        due = [each for each in self._requests if everything or each[0] <= now]
        self._requests = [each for each in self._requests if each not in due]
        self.delivered_count += len(due)
        for _, call in sorted(due, key=lambda each: each[0]):
            with suppress(*REQUEST_ERRORS):
                call()


class ObjectNetwork:
    """The requests of one owner; ``run`` is what an ``ObjectStore`` runs them by."""

    def __init__(
        self,
        late: LateRequests,
        random: Random,
        *,
        next_fault: Callable[[], ObjectFault] = lambda: ObjectFault.NONE,
        next_delay: Callable[[str], float] = lambda _: 0.0,
    ) -> None:
        self._late = late
        self._random = random
        self.next_fault = next_fault
        self._next_delay = next_delay
        self._under_way: dict[int, Callable[[], object]] = {}
        self._count = 0
        self._abandoned = False

    async def run(self, call: Callable[[], T], limiter: trio.CapacityLimiter, _: bool) -> T:
        """Send a request and wait for the answer."""
        async with limiter:
            number = self._count = self._count + 1
            self._check_alive()
            self._under_way[number] = call
            try:
                await trio.sleep(self._next_delay("request"))
            finally:
                self._under_way.pop(number, None)
            self._check_alive()
            self._late.deliver()
            fault = self.next_fault()
            if fault is ObjectFault.NOT_SENT:
                raise ConnectionResetError("simulated: the connection was reset")
            if fault is ObjectFault.SLOW_DOWN:
                raise answer_error("SlowDown", 503)
            if fault is ObjectFault.LATE:
                self._late.add(call)
                raise TimeoutError("simulated: no answer in time")
            answer = call()
            await trio.sleep(self._next_delay("reply"))
            if fault is ObjectFault.REPLY_LOST:
                raise ConnectionResetError("simulated: the answer was lost")
            return answer

    def abandon(self) -> None:
        """Kill the sender: what is under way arrives some time, or never."""
        self._abandoned = True
        for call in self._under_way.values():
            if self._random.random() < 0.5:
                self._late.add(call)

    def _check_alive(self) -> None:
        if self._abandoned:
            raise ConnectionResetError("simulated: the sender is dead")

"""Every suite of the official Java client, by name, with each client version."""

from __future__ import annotations

import os

import pytest
from compat_harness.java import JavaClient

SUITE_SECONDS_MAX = 600.0

SUITES = (
    "MillionEventsTest",
    "ReaderTakeoverTest",
    "ScaleTest",
    "SealedStreamTest",
    "TruncationTest",
    "StreamManagementTest",
    "StateSynchronizerTest",
    "RevisionedStreamTest",
    "ByteStreamTest",
    "LargeEventTest",
    "ReaderGroupTest",
    "BatchReadTest",
    "KeyValueTableTest",
    "TransactionTest",
    "OpenMessagingTest",
)


@pytest.mark.compat
@pytest.mark.timeout(3 * SUITE_SECONDS_MAX)
@pytest.mark.parametrize("suite", SUITES)
def test_java_suite(java_client: JavaClient, suite: str, controller_uri: str) -> None:
    events = os.environ.get("SEGSTORE_COMPAT_EVENTS", "1000000")
    passed, output = java_client.run_suite(
        suite,
        seconds_max=SUITE_SECONDS_MAX,
        properties={"controller": controller_uri, "events": events},
    )
    print(output)
    if not passed:
        pytest.fail(f"{suite} failed with client {java_client.version}:\n{output}", pytrace=False)

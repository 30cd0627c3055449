"""Makes what bookies need in ZooKeeper, unless it is there from an earlier start.

    format.py [--ca FILE --certificate FILE --key FILE] ZOOKEEPER LEDGERS_PATH COMMAND...

With the files, all PEM, it speaks TLS to ZooKeeper. The command is BookKeeper's, which makes all of
it or nothing. The exit code is 0 when it is there.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

ZOOKEEPER_SECONDS_MAX = 60.0
SECONDS_MAX = 180
"""Maximum time, in seconds, from the start to the end of the command."""


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code; do not return but become the command where it is needed."""
    parser = argparse.ArgumentParser()
    for file in ("ca", "certificate", "key"):
        parser.add_argument(f"--{file}")
    parser.add_argument("zookeeper")
    parser.add_argument("ledgers_path")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    # It tells of each connection that is not there yet.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    # The alarm stays set for the command, which waits for ever for some answers: it ends by this
    # signal, and the supervisor tries again.
    signal.alarm(SECONDS_MAX)
    files = {"ca": given.ca, "certfile": given.certificate, "keyfile": given.key}
    is_secure = given.ca is not None
    client = KazooClient(
        hosts=given.zookeeper, use_ssl=is_secure, check_hostname=is_secure, **files
    )
    try:
        client.start(ZOOKEEPER_SECONDS_MAX)
        is_there = client.exists(f"{given.ledgers_path}/INSTANCEID") is not None
        client.ensure_path(given.ledgers_path.rpartition("/")[0])
    except (KazooException, KazooTimeoutError) as error:
        print(f"ZooKeeper does not answer: {error!r}", file=sys.stderr)
        return 1
    finally:
        client.stop()
        client.close()
    if not is_there:
        os.execvp(given.command[0], given.command)
    return 0


if __name__ == "__main__":
    sys.exit(main())

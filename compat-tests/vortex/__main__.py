"""``python -m vortex --minutes 60 [--cluster [--secure]] [--seed N] [--directory DIR]``.

See ``make vortex`` and ``make vortex-cluster``.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from compat_harness.checker import BrokenPromiseError

from vortex.cluster import open_cluster
from vortex.faults import open_store
from vortex.run import Run, VortexError


def main() -> int:
    """Run it; exit code 1 if the store did not survive."""
    parser = argparse.ArgumentParser(prog="vortex", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--cluster", action="store_true", help="a cluster, not a single store")
    parser.add_argument("--secure", action="store_true", help="the cluster has TLS and users")
    parser.add_argument("--seed", type=int, default=None, help="draws the faults and the load")
    parser.add_argument("--directory", type=Path, default=None, help="kept, with ledgers and logs")
    options = parser.parse_args()
    if options.secure and not options.cluster:
        parser.error("--secure needs --cluster")
    seed = random.randrange(2**32) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="vortex-"))
    directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {line}", flush=True)

    say(f"seed {seed}, in {directory}")
    try:
        cluster = partial(open_cluster, secure=options.secure)
        subject = cluster if options.cluster else open_store
        run = Run(directory, seed=seed, say=say, open_subject=subject)
        outcome = run.execute(seconds=options.minutes * 60.0)
    except (VortexError, BrokenPromiseError) as error:
        print(f"{error}\nseed {seed}; ledgers and logs are in {directory}")
        return 1
    for line in outcome.lines():
        print(line)
    if options.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Draws a flame graph of the segment store's threads under a row's load.

Run from the repository's root: `python -m benchmarks.flame_graph [--row L2] [--output FILE.svg]`.
It needs the sampling profiler py-spy in the PATH, which is no dependency of the project.

1. The server is the one that is installed, in processes of its own, with no setting changed.
2. A thread that sleeps, or waits for the interpreter's lock, is not counted.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load import run_load
from benchmarks.peers.segstore_standalone import SegstoreStandalone
from benchmarks.streams.rows import BY_NAME, Plan

PROFILER = "py-spy"
SAMPLES_PER_SECOND = 400
WARMUP_SECONDS = 5.0
SECONDS = 8.0
WORKER = "segment-store"
"""The name of the segment store's pid file."""


def record(row_name: str, output: Path) -> None:
    """Load a fresh server with the row's work, and write the flame graph of its segment store."""
    plan = Plan(warmup_seconds=WARMUP_SECONDS, seconds=SECONDS)
    load = plan.load(BY_NAME[row_name])
    peer = SegstoreStandalone(settings=BY_NAME[row_name].settings)
    peer.reserve()
    with tempfile.TemporaryDirectory(prefix="segstore-flame-") as directory:
        try:
            server = peer.start(Path(directory))
            [pid_file] = Path(directory, "data", "run").glob(f"{WORKER}*.pid")
            process_id = int(pid_file.read_text())
            recorder = threading.Thread(target=_record, args=(process_id, output))
            recorder.start()
            result = run_load(server.address, load)
            recorder.join()
        finally:
            peer.stop()
    if failure := result.failure():
        raise SystemExit(f"the load failed: {failure}")
    rate = result.publish.events_per_second
    print(
        f"{output}: {row_name}, {rate:,.0f} events/s, publish p50 {result.publish.latency_ms.p50}"
    )


def _record(process_id: int, output: Path) -> None:
    """Sample the process in the measured seconds."""
    time.sleep(WARMUP_SECONDS + 1)
    command = [PROFILER, "record", "--pid", str(process_id), "--threads", "--nonblocking"]
    command += ["--rate", str(SAMPLES_PER_SECOND), "--duration", str(int(SECONDS) - 2)]
    command += ["--format", "flamegraph", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr.strip(), file=sys.stderr)
        return
    output.write_text(without_script(output.read_text()))


def without_script(picture: str) -> str:
    """Return the profiler's picture without its scripts, for a page that runs none."""
    picture = re.sub(r"<script.*?</script>", "", picture, flags=re.DOTALL)
    picture = re.sub(r'<text id="(?:unzoom|search|matched)".*?</text>', "", picture)
    return re.sub(r'\sonload="[^"]*"', "", picture)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flame_graph")
    rows = sorted(name for name, row in BY_NAME.items() if row.load is not None)
    parser.add_argument("--row", choices=rows, default="L2")
    parser.add_argument("--output", type=Path, help="docs/performance/flame-ROW.svg by default")
    options = parser.parse_args(arguments)
    if shutil.which(PROFILER) is None:
        parser.error(f"{PROFILER} is not installed: pip install {PROFILER}")
    output = options.output or Path("docs/performance") / f"flame-{options.row.lower()}.svg"
    record(options.row, output)


if __name__ == "__main__":
    main()

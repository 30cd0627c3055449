"""The duties of a server process besides serving."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

CHECK = """
import gc
from pravega_admin.serving.child import COLLECTION_THRESHOLDS, collect_seldom
collect_seldom()
assert gc.get_threshold() == COLLECTION_THRESHOLDS
assert gc.get_freeze_count() > 1000
assert gc.isenabled()
ring = [ring := []]
ring.append(ring)
del ring
assert gc.collect() > 0, "what is made later is still collected"
"""


def test_the_collector_passes_over_what_a_server_started_with() -> None:
    subprocess.run([sys.executable, "-c", CHECK], check=True)

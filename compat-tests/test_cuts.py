"""Stream cuts, valid ones and ones broken in every way: the same answer as the original, or a
difference that was decided and is listed in docs/compatibility.md.

The short form compares with recorded answers of the original, the full one asks it a thousand cuts.
``SEGSTORE_COMPAT_RECORD=1`` records them anew.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from compat_harness.cuts import WORLDS, Server, explain_difference
from compat_harness.matrix import CUT_DIFFERENCES
from compat_harness.original import run_original
from compat_harness.server import TARGET_VARIABLE

RECORDED = Path(__file__).parent / "recorded" / "cuts_of_the_original.json"
CUTS_PER_WORLD = 200
RECORDED_PER_WORLD = 30
COPY_EVERY = 50
TRUNCATIONS_PER_COPY = 10
"""Number of cuts at which one copy of a stream is truncated: the head refuses more and more."""
GROUP_EVERY = 20

pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a server of its own"),
]


def test_cuts_have_the_recorded_answers_of_the_original(controller_uri: str) -> None:
    recorded = json.loads(RECORDED.read_text())
    assert recorded.keys() == WORLDS.keys()
    seen: Counter[str] = Counter()
    with closing(Server(controller_uri)) as ours:
        for name, answers in recorded.items():
            world = ours.make(name)
            lengths = {str(each): segment.length for each, segment in world.segments.items()}
            assert lengths == answers["lengths"]
            for text, theirs in answers["valid"].items():
                cut = {int(each): offset for each, offset in json.loads(text).items()}
                valid = ours.is_valid(world.name, cut)
                assert ours.begin_group(world.name, cut) is (valid or not cut), (name, cut)
                difference = explain_difference(world, cut)
                assert valid == theirs or difference in CUT_DIFFERENCES, (name, cut, valid)
                seen[f"{valid}, {theirs}"] += 1
    assert min(seen["True, True"], seen["False, False"]) > 10


@pytest.fixture
def original_uri(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if not pytestconfig.getoption("--full"):
        pytest.skip("compared with the original itself in the full form")
    with run_original(tmp_path_factory.mktemp("original"), heap="2g") as address:
        yield address


def test_a_thousand_cuts_have_the_answers_of_the_original(
    controller_uri: str, original_uri: str
) -> None:
    random = Random(31)
    differences: Counter[str | None] = Counter()
    same: Counter[tuple[str, bool]] = Counter()
    record = {}
    with closing(Server(controller_uri)) as ours, closing(Server(original_uri)) as theirs:
        for name in WORLDS:
            world, there = ours.make(name), theirs.make(name)
            assert (world.segments, world.scales) == (there.segments, there.scales)
            answers: dict[str, bool] = {}
            copies, copy = 0, ""
            for number in range(CUTS_PER_WORLD):
                cut = world.draw(random)
                if random.random() < 0.6:
                    cut = world.break_it(random, cut)
                here, original = ours.is_valid(world.name, cut), theirs.is_valid(world.name, cut)
                answers[json.dumps(dict(sorted(cut.items())))] = original
                if cut and number % GROUP_EVERY == 0:
                    assert ours.begin_group(world.name, cut) is here, cut
                    # It does not look at them.
                    assert theirs.begin_group(world.name, cut), cut
                if here != original:
                    differences[explain_difference(world, cut)] += 1
                    continue
                same["valid", here] += 1
                if original and min(cut.values(), default=0) < 0:
                    # The original would not end this truncation.
                    continue
                if copies <= number // COPY_EVERY:
                    copies += 1
                    copy = ours.make(name, copy=copies).name
                    assert theirs.make(name, copy=copies).name == copy
                if number % COPY_EVERY < TRUNCATIONS_PER_COPY:
                    for what in ("release", "truncate"):
                        found = [getattr(each, what)(copy, cut) for each in (ours, theirs)]
                        assert found[0] == found[1], (what, copy, cut, found)
                        same[what, found[0]] += 1
            lengths = {str(each): segment.length for each, segment in world.segments.items()}
            kept = dict(list(answers.items())[:RECORDED_PER_WORLD])
            record[name] = {"lengths": lengths, "valid": kept}
    print(f"same answers: {dict(same)}; differences: {dict(differences)}")
    assert differences.keys() == CUT_DIFFERENCES.keys()
    assert all(
        same[what, yes] > 10 for what in ("valid", "release", "truncate") for yes in (True, False)
    )
    if os.environ.get("SEGSTORE_COMPAT_RECORD"):
        RECORDED.write_text(json.dumps(record, indent=1) + "\n")

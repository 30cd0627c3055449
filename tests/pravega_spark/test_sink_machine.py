"""The sink, the checkpoints of Spark and the store against a model of what each plan has written.

A plan of a batch is written by all attempts at it together once, whatever becomes of checkpoints
and streams. An event is in the stream as often as it is in plans of which a batch has ended: once
for each query that read it, and once more for each older copy of a checkpoint that a query went on
from.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from segstore_client.errors import RefusedError
from support.models.memory_pravega import Crash, MemoryPravega
from support.models.spark_programs import DiedError, Plan, Program, sink_of

EXAMPLES = int(os.environ.get("SEGSTORE_SINK_EXAMPLES", "10000"))
"""Number of examples of the long run."""
PLACES = ("a", "a", "a", "b")
DIRECTORIES = ("here", "here", "here", "there")
SPELLINGS = ("{path}", "file:{path}", "file://{path}", "{relative}", "{directory}/./{relative}")
STEPS = st.sampled_from([4, 8, 1, 2, 3, 5, 6, 7])
"""Most often whole batches, which have four steps."""
REQUESTS = st.none() | st.integers(0, 16)
REMOTE = "hdfs://names{path}"
OPTIONS = {"scope": "s", "stream": "t"}


class SinkMachine(RuleBasedStateMachine):
    """Draws what happens to programs, checkpoints and streams."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="sink-machine-"))
        for name in set(DIRECTORIES):
            (self.root / name).mkdir()
        self.pravega = MemoryPravega()
        self.pravega.create("t")
        self.plans: dict[str, Plan] = {}
        self.programs: list[Program] = []
        self.source: list[str] = []
        self.sources = 0
        self.copies = 0
        self.is_remote = False
        self.shared_queries: set[str] = set()
        """The queries that two programs have run at once."""

        self._patches = contextlib.ExitStack()
        self._patches.enter_context(sink_of(self.pravega))

    def teardown(self) -> None:
        self._patches.close()
        shutil.rmtree(self.root)

    @initialize(is_remote=st.booleans())
    def begin(self, is_remote: bool) -> None:
        self.is_remote = is_remote

    # ---- Programs --------------------------------------------------------------------------------

    @rule(
        place=st.sampled_from(PLACES),
        directory=st.sampled_from(DIRECTORIES),
        spelling=st.sampled_from(SPELLINGS),
        count=st.integers(0, 3),
        steps=STEPS,
        requests=REQUESTS,
        before=st.booleans(),
        leases_end=st.booleans(),
    )
    def run(
        self,
        place: str,
        directory: str,
        spelling: str,
        count: int,
        steps: int,
        requests: int | None,
        before: bool,
        leases_end: bool,
    ) -> None:
        """Run a program for some steps, or until it is killed at a request."""
        self._end_programs(self.root / directory / place)
        program = self._start(place, directory, spelling, count)
        self.pravega.crash_at, self.pravega.crashes_before = requests, before
        self._steps(program, steps)
        self.pravega.crash_at = None
        if leases_end:
            self.pravega.end_leases()

    @precondition(lambda self: not self.is_remote)
    @rule(
        directory=st.sampled_from(DIRECTORIES),
        spelling=st.sampled_from(SPELLINGS),
        counts=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
        steps=st.tuples(st.integers(0, 4), STEPS, STEPS),
        requests=REQUESTS,
    )
    def run_two(
        self,
        directory: str,
        spelling: str,
        counts: tuple[int, int, int],
        steps: tuple[int, int, int],
        requests: int | None,
    ) -> None:
        """Run two programs with one checkpoint, which they can see.

        The second one takes its steps between those of the first one, or between its requests.
        """
        one = self._start("a", directory, spelling, counts[0])
        self._steps(one, steps[0])
        other = self._start("a", directory, spelling, counts[1])
        if requests is not None:
            self._interleave(one, steps[2], requests, other, steps[1])
            return
        self._steps(other, steps[1] // 2)
        self._write_source(counts[2])
        self._steps(other, steps[1])
        self._steps(one, steps[2])

    def _start(self, place: str, directory: str, spelling: str, count: int) -> Program:
        path = self.root / directory / place
        if self.is_remote:
            spelling = REMOTE
        self._write_source(count)
        location = spelling.format(path=path, relative=place, directory=self.root / directory)
        options = {**OPTIONS, "checkpointLocation": location}
        program = Program(self.pravega, self.plans, path, options, self.root / directory)
        if any(each.query == program.query for each in self.programs):
            self.shared_queries.add(program.query)
        self.programs.append(program)
        return program

    @precondition(lambda self: self.programs)
    @rule(data=st.data(), steps=st.integers(1, 8))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        self._steps(data.draw(st.sampled_from(self.programs)), steps)

    @rule()
    def crash(self) -> None:
        """Kill all programs."""
        self.programs = []

    @precondition(lambda self: len(self.programs) > 1)
    @rule(data=st.data(), requests=st.integers(0, 12), steps=st.integers(1, 8))
    def interleave(self, data: st.DataObject, requests: int, steps: int) -> None:
        """Let one program take steps between two requests of another."""
        program = data.draw(st.sampled_from(self.programs))
        other = data.draw(st.sampled_from([each for each in self.programs if each is not program]))

        self._interleave(program, 4, requests, other, steps)

    def _interleave(
        self, program: Program, count: int, requests: int, other: Program, steps: int
    ) -> None:
        """Let a program take steps, and another one its own before one of the requests."""
        self.pravega.interrupt_at = requests
        self.pravega.interrupt = partial(self._steps, other, steps)
        self._steps(program, count)
        self.pravega.interrupt_at = None

    def _steps(self, program: Program, count: int) -> None:
        """Let a program take steps until it ends or has nothing to do."""
        for _ in range(count):
            if program not in self.programs or not self._step(program):
                break

    def _step(self, program: Program) -> bool:
        """Let a program take one step; return whether it did, and forget it when it ends."""
        attempt = program.plan, self._states(program)
        try:
            return program.step(self.source)
        except (Crash, DiedError):
            self.programs.remove(program)
        except RefusedError as error:
            self.programs.remove(program)
            self._check_refusal(program, *attempt, str(error))
        return False

    def _states(self, program: Program) -> set[str]:
        """Return the states of the transactions of a program's batch."""
        found = self.pravega.transactions
        return {
            found[ident].state if ident in found else "unknown" for ident in program.transactions
        }

    def _check_refusal(
        self, program: Program, plan: Plan | None, states: set[str], said: str
    ) -> None:
        """Check that the sink refused a batch for a reason that there is."""
        assert plan is not None
        attempts = set(plan.written)
        if "two programs" in said:
            assert not self.is_remote
            assert program.query in self.shared_queries, said
        elif "may be another one" in said:
            assert self.is_remote, said
        elif "plan has changed" in said:
            assert len(attempts) > 1, said
        else:
            assert "ended" in said or "end of transaction" in said
            # Its lease ended, the stream was made again, or another program has aborted it.
            assert states & {"aborted", "unknown"} or program.query in self.shared_queries, said

    def _end_programs(self, path: Path) -> None:
        self.programs = [each for each in self.programs if each.path != path]

    # ---- Checkpoints -----------------------------------------------------------------------------

    @rule(place=st.sampled_from(PLACES), directory=st.sampled_from(DIRECTORIES))
    def remove_checkpoint(self, place: str, directory: str) -> None:
        path = self.root / directory / place
        self._end_programs(path)
        shutil.rmtree(path, ignore_errors=True)

    @rule(
        place=st.sampled_from(PLACES),
        to=st.sampled_from(PLACES),
        there=st.sampled_from(DIRECTORIES),
    )
    def move_checkpoint(self, place: str, to: str, there: str) -> None:
        path, target = self.root / "here" / place, self.root / there / to
        if path.exists() and not target.exists():
            self._end_programs(path)
            path.rename(target)

    @rule(
        place=st.sampled_from(PLACES),
        directory=st.sampled_from(DIRECTORIES),
        batches=st.integers(0, 2),
        count=st.none() | st.integers(0, 3),
    )
    def copy_checkpoint(self, place: str, directory: str, batches: int, count: int | None) -> None:
        """Copy a checkpoint, and let its query end some batches more.

        With a count of new events, put the copy back, and go on from it.
        """
        path = self.root / directory / place
        if not path.exists():
            return
        self.copies += 1
        shutil.copytree(path, self.root / "copies" / str(self.copies))
        self._end_programs(path)
        for _ in range(batches):
            self._steps(self._start(place, directory, SPELLINGS[0], 1), 4)
            self._end_programs(path)
        if count is not None:
            self._restore(self.copies, path)
            self._steps(self._start(place, directory, SPELLINGS[0], count), 4)

    @precondition(lambda self: self.copies)
    @rule(
        age=st.integers(0, 2), place=st.sampled_from(PLACES), directory=st.sampled_from(DIRECTORIES)
    )
    def restore_checkpoint(self, age: int, place: str, directory: str) -> None:
        self._restore(max(1, self.copies - age), self.root / directory / place)

    def _restore(self, number: int, path: Path) -> None:
        """Put a copy in place of its checkpoint, which is nowhere else then."""
        copy = self.root / "copies" / str(number)
        query = (copy / "metadata").read_text()
        old = [self.root / each / name for each in set(DIRECTORIES) for name in set(PLACES)]
        for each in old:
            if each == path or (each.exists() and (each / "metadata").read_text() == query):
                self._end_programs(each)
                shutil.rmtree(each, ignore_errors=True)
        shutil.copytree(copy, path)
        for each in (path / "offsets").iterdir():
            if not (path / "commits" / each.name).exists():
                self.plans[each.read_text()].restored += 1

    # ---- Streams ---------------------------------------------------------------------------------

    def _write_source(self, count: int) -> None:
        first = len(self.source)
        self.source += [f"{self.sources}-{first + number}" for number in range(count)]

    @precondition(lambda self: not self.is_remote)
    @rule()
    def recreate_source(self) -> None:
        """Make the source anew; without plans, other rows of equal number could not be told."""
        self.sources += 1
        self.source = []

    @rule()
    def recreate_sink(self) -> None:
        self.pravega.delete("t")
        self.pravega.create("t")

    @rule()
    def scale_sink(self) -> None:
        self.pravega.scale("t")

    @rule()
    def truncate_sink(self) -> None:
        self.pravega.truncate("t")

    @rule()
    def end_leases(self) -> None:
        self.pravega.end_leases()

    # ---- The model -------------------------------------------------------------------------------

    @invariant()
    def the_stream_has_what_the_plans_say(self) -> None:
        stream = self.pravega.streams["t"]
        counts = Counter(stream.events)
        for row, count in counts.items():
            # The sink remembers the last batch of a query, and this one may be an earlier one.
            assert count <= 1 + self.plans[row.split()[1]].restored, f"doubled: {row}"
        seen = Counter(str(row).split()[0] for row in counts)
        for plan in self.plans.values():
            if stream in plan.done and len(set(plan.written)) == 1:
                for row in plan.written[0]:
                    if self.is_remote:
                        # An older copy may have planned the same rows again, which are in it once.
                        assert seen[row.split()[0]], f"lost: {row}"
                    else:
                        assert counts[row], f"lost: {row}"


def run_machine(examples: int | None, steps: int) -> None:
    more = {} if examples is None else {"max_examples": examples}
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        SinkMachine, settings=settings(stateful_step_count=steps, deadline=None, **more)
    )


def test_the_sink_agrees_with_the_model() -> None:
    run_machine(None, 30)


@pytest.mark.proof
@pytest.mark.timeout(3_600)
def test_the_sink_agrees_with_the_model_for_very_many_examples() -> None:
    run_machine(EXAMPLES, 40)

"""Feeds parsers with broken input: no coverage, no network, the same inputs for the same seed.

Owns: how inputs are made out of valid ones, and what a parser may do with them.

1. A parser answers any bytes with a value or with an error of the kinds that it documents.
2. It answers within ``SECONDS_MAX``, and asks for no more memory than ``memory_allowance``.
3. An input is made of ``(seed, target, number)`` alone, and of the inputs before it.

An input that gets an answer of a new kind is kept and mutated further: that is how inputs come
through several checks one after the other.
"""

from __future__ import annotations

import base64
import re
import time
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

SECONDS_MAX = 1.0
INPUT_BYTES_MAX = 1 << 16
KEPT_MAX = 400

_NUMBERS = [0, 1, 2, 7, 8, 15, 16, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0xFF_FFFF, 0x7FFF_FFFF]
_NUMBERS += [2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, -1, -2, -8, -(2**31), -(2**63)]
_VARIABLE = re.compile(r"[0-9a-f]*[0-9][0-9a-fx]*|'[^']*'|\"[^\"]*\"")


class FuzzFinding(AssertionError):
    """A parser did something forbidden. The message has all that is needed to see it again."""


@dataclass(frozen=True)
class Target:
    """One parser.

    ``corpus`` are valid inputs. ``parse`` gets an input and a source of choices (how to cut it up,
    say); it raises one of ``errors`` or returns something. ``repair`` puts checksums right, so that
    what lies behind them is reached too. ``memory_allowance`` tells how many bytes an input of a
    length may ask for.
    """

    name: str
    corpus: Callable[[], Sequence[bytes]]
    parse: Callable[[bytes, Random], object]
    errors: tuple[type[Exception], ...] = ()
    repair: Callable[[bytes], bytes] | None = None
    memory_allowance: Callable[[int], int] = field(default=lambda length: (2 << 20) + 400 * length)


def fuzz(
    target: Target,
    *,
    seed: int,
    seconds: float,
    before: Callable[[bytes], None] = lambda data: None,
) -> int:
    """Feed a target for this many seconds; return the number of inputs. Raises ``FuzzFinding``."""
    random = Random(f"{seed} {target.name}")
    corpus = list(target.corpus())
    seen: set[str] = set()
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start(1)
    try:
        number = 0
        end = time.monotonic() + seconds
        while number < len(corpus) or time.monotonic() < end:
            if number < len(corpus) and not seen.issuperset({f"valid {number}"}):
                seen.add(f"valid {number}")
                data = corpus[number]
            else:
                data = mutated(target, corpus, random)
            before(data)
            answer = answer_of(target, data, random.randrange(1 << 32), f"{seed}, input {number}")
            if answer not in seen and len(corpus) < KEPT_MAX:
                seen.add(answer)
                corpus.append(data)
            number += 1
        return number
    finally:
        if not tracing:
            tracemalloc.stop()


def answer_of(target: Target, data: bytes, choices: int, where: str, *, attempts: int = 3) -> str:
    """Return the kind of answer that the parser gives. Raises ``FuzzFinding``."""

    def finding(what: str) -> FuzzFinding:
        return FuzzFinding(
            f"{target.name} {what}; seed {where}; see it again with:"
            f" make fuzz TARGET='{target.name}' CHOICES={choices} INPUT={packed(data)}"
        )

    tracemalloc.reset_peak()
    memory_before = tracemalloc.get_traced_memory()[0]
    start = time.monotonic()
    try:
        answer = f"value {type(target.parse(data, Random(choices))).__name__}"
    except target.errors as error:
        answer = f"{type(error).__name__} {_VARIABLE.sub('', str(error))[:200]}"
    except Exception as error:
        raise finding(f"raises {type(error).__name__}: {error}") from error
    seconds = time.monotonic() - start
    memory = tracemalloc.get_traced_memory()[1] - memory_before
    if seconds > SECONDS_MAX and attempts > 1:  # the machine may have been busy
        return answer_of(target, data, choices, where, attempts=attempts - 1)
    if seconds > SECONDS_MAX:
        raise finding(f"takes {seconds:.1f} s for {len(data)} bytes")
    if memory > target.memory_allowance(len(data)):
        raise finding(f"asks for {memory} bytes of memory for {len(data)} bytes")
    return answer


def replay(target: Target, data: bytes, choices: int = 0) -> str:
    """Repeat one input: for a finding, and for the tests that keep it from coming back."""
    tracemalloc.start(1)
    try:
        return answer_of(target, data, choices, "replayed")
    finally:
        tracemalloc.stop()


def packed(data: bytes) -> str:
    """Return an input as text."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def unpacked(text: str) -> bytes:
    """Return the input of a text that ``packed`` made."""
    return zlib.decompress(base64.b64decode(text))


# ---- Making inputs -------------------------------------------------------------------------------


def mutated(target: Target, corpus: Sequence[bytes], random: Random) -> bytes:
    """Return a kept input with one to eight changes."""
    data = bytearray(random.choice(corpus))
    for _ in range(1 + min(7, int(random.expovariate(0.8)))):
        random.choice(_CHANGES)(data, random, corpus)
    del data[INPUT_BYTES_MAX:]
    result = bytes(data)
    if target.repair is not None and random.random() < 0.8:
        result = target.repair(result)
    return result


_Change = Callable[[bytearray, Random, Sequence[bytes]], None]


def _place(data: bytearray, random: Random) -> int:
    """Choose a position, more often one near the beginning, where headers are."""
    end = len(data)
    return (
        random.randrange(min(end, 64) + 1) if random.random() < 0.5 else random.randrange(end + 1)
    )


def _flip_bit(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    if data:
        data[min(_place(data, random), len(data) - 1)] ^= 1 << random.randrange(8)


def _set_byte(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    if data:
        data[min(_place(data, random), len(data) - 1)] = random.randrange(256)


def _set_number(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    width = random.choice([1, 2, 4, 4, 4, 8, 8])
    start = _place(data, random)
    number = random.choice([*_NUMBERS, len(data) - start, len(data) - start - width, len(data)])
    number += random.choice([0, 0, 0, 1, -1])
    encoded = (number % 256**width).to_bytes(width, random.choice(["big", "big", "little"]))
    data[start : start + width] = encoded


def _cut(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    start = _place(data, random)
    del data[start : start + random.choice([1, 2, 4, 8, random.randrange(len(data) + 1)])]


def _truncate(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    del data[_place(data, random) :]


def _insert(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    start = _place(data, random)
    data[start:start] = random.randbytes(random.choice([1, 2, 4, 8, random.randrange(64)]))


def _repeat(data: bytearray, random: Random, _: Sequence[bytes]) -> None:
    start = _place(data, random)
    piece = data[start : start + random.randrange(1, 65)]
    data[start:start] = piece * random.choice([1, 1, 2, 16])


def _splice(data: bytearray, random: Random, corpus: Sequence[bytes]) -> None:
    other = random.choice(corpus)
    start = random.randrange(len(other) + 1)
    place = _place(data, random)
    if random.random() < 0.5:
        data[place:] = other[start:]
    else:
        data[place:place] = other[start : start + random.randrange(1, 129)]


_CHANGES: list[_Change] = [
    _flip_bit,
    _set_byte,
    _set_number,
    _set_number,
    _cut,
    _truncate,
    _insert,
    _repeat,
    _splice,
]

"""Writes values as YAML, block by block.

Owns: that text. Every YAML 1.2 parser reads it: texts are quoted as in JSON unless they are plain
words, and a mapping or a list without members is written as in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_RESERVED = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def write_yaml(value: Any) -> str:
    """Return the text of a value of texts, numbers, booleans, None, mappings and sequences."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            head = f"{_scalar(str(key))}:"
            if _is_block(each):
                yield head
                yield from (f"  {line}" for line in _lines(each))
            else:
                yield f"{head} {_scalar(each)}"
    elif _is_block(value):
        for each in value:
            first, *rest = _lines(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _is_block(value: Any) -> bool:
    return isinstance(value, Mapping | Sequence) and not isinstance(value, str) and len(value) > 0


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return json.dumps(value, ensure_ascii=False)

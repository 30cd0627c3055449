"""Walks of the statements of a source, for rules about definitions and imports.

They take a fraction of the time of ``ast.walk``, which also visits each part of each expression.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def walk_statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Return all statements below a node, with the handlers and cases that hold some of them."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        below = getattr(tree, field, ())
        for node in below if isinstance(below, list) else ():
            yield node
            yield from walk_statements(node)

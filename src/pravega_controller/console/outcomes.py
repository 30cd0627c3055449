"""Tells in one sentence what a change has done, on the page to which it leads.

Owns: the sentences, and the query by which a page is asked for one of them. The sentence is never
in the address, so no link of another site puts a text of its own on a page.
"""

from __future__ import annotations

from typing import Final

from pravega_controller.console.routes import Lead, PageRequest

SENTENCES: Final = {
    "scaled": "Stream {name} is being scaled: the new segments appear in a moment.",
    "truncated": "Stream {name} is truncated: the events before the cut are deleted.",
    "sealed": "Stream {name} is sealed.",
    "deleted": "Stream {name} is deleted.",
    "aborted": "A transaction of stream {name} is aborted.",
}
"""The sentence of each outcome, by the word for it in an address."""
FIELD: Final = "done"


def lead_with_outcome(path: str, outcome: str, **query: str) -> Lead:
    """Return the answer that leads to a page which tells the outcome of a change."""
    assert outcome in SENTENCES
    return Lead(path, {FIELD: outcome, **query})


def is_told(request: PageRequest, outcome: str) -> bool:
    """Return whether the page is asked to tell this outcome."""
    return request.query.get(FIELD) == outcome


def tell_outcome(request: PageRequest, name: str) -> str | None:
    """Return the sentence that the page is asked for, about a scoped name; None without one."""
    sentence = SENTENCES.get(request.query.get(FIELD, ""))
    return None if sentence is None else sentence.format(name=name)

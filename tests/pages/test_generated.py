"""The generated parts of the documentation say what the sources declare."""

from __future__ import annotations

from generated import PARTS, pages, texts


def test_pages_say_what_is_declared() -> None:
    old = [path.name for path, text in pages().items() if path.read_text("utf-8") != text]
    assert old == [], "make pages writes them anew"


def test_every_part_is_in_one_page() -> None:
    documents = [path.read_text("utf-8") for path in texts()]
    for part in PARTS:
        assert sum(text.count(f"<!-- made by make pages: {part} -->") for text in documents) == 1

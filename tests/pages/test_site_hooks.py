"""The site has every page once, and its links lead where those of the repository do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import site_hooks
from site_hooks import (
    FOLDER,
    ROOT,
    change_links,
    lead_on_site,
    list_pages,
    markdown_of,
    pages_outside,
    place_on_site,
    source_of,
    summary_of,
)

DOCS = ROOT / "docs"
NAVIGATION = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
LINK = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def documents() -> Iterator[Path]:
    yield from (ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "HACKING"))
    yield from DOCS.rglob("*.md")


def anchors_of(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as the site and others make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {slug(heading) for heading in HEADING.findall(text)}


def slug(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


def test_the_navigation_has_every_page_once() -> None:
    named = re.findall(r"([\w./-]+\.md)$", NAVIGATION, re.MULTILINE)
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    decisions = {name for name in pages if re.match(r"adr/\d", name)}
    assert sorted(named) == sorted(set(named))
    assert {name for name in named if not name.startswith(FOLDER)} == pages - decisions
    for name in named:
        assert (ROOT / source_of(name)).is_file(), name


def test_links_lead_to_headings() -> None:
    checked, broken = 0, []
    for path in documents():
        for target, anchor in LINK.findall(path.read_text("utf-8")):
            other = path.parent / target if target else path
            if "://" in target or other.suffix != ".md":
                continue
            checked += 1
            if anchor not in anchors_of(other):
                broken.append(f"{path.relative_to(ROOT)} -> {target}#{anchor}")
    assert broken == []
    assert checked > 100


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("README.md", "README.md"),
        ("docs/guides/running.md", "guides/running.md"),
        ("docs/adr", "adr/README.md"),
        ("HACKING.md", "repository/HACKING.md"),
        ("benchmarks", "repository/benchmarks/README.md"),
        ("deploy/Dockerfile", "repository/deploy/Dockerfile.md"),
        ("src/segstore", "repository/src/segstore.md"),
        ("docs/none.md", None),
    ],
)
def test_a_file_of_the_repository_has_a_place(name: str, place: str | None) -> None:
    assert place_on_site(name) == place


def test_a_page_knows_the_file_that_it_is_made_of() -> None:
    assert source_of("guides/running.md") == "docs/guides/running.md"
    assert source_of("repository/HACKING.md") == "HACKING.md"
    assert source_of("repository/deploy/Dockerfile.md") == "deploy/Dockerfile"


def test_links_lead_on_the_site_where_they_lead_in_the_repository() -> None:
    text = "[a](../../HACKING.md#style) [b](../formats/) [c](rest.md) [d](https://e.org/f) [e](#g)"
    assert lead_on_site(text, "docs/guides/running.md") == (
        "[a](../repository/HACKING.md#style) [b](../formats/README.md) [c](rest.md)"
        " [d](https://e.org/f) [e](#g)"
    )
    assert lead_on_site("[a](docs/guides/rest.md)", "HACKING.md") == "[a](../guides/rest.md)"


def test_code_is_left_as_it_is() -> None:
    text = "[a](b)\n```python\nnames[0](c)\n```\n[d](e)\n"
    changed = change_links(text, lambda target: target + "!")
    assert changed == "[a](b!)\n```python\nnames[0](c)\n```\n[d](e!)\n"


def test_pages_outside_are_found_through_each_other() -> None:
    found = pages_outside(["docs/ARCHITECTURE.md"])
    assert found["repository/HACKING.md"] == "HACKING.md"
    # HACKING.md leads to the others.
    assert all(place == place_on_site(name) for place, name in found.items())


def test_a_source_is_a_page_of_code_and_a_folder_a_list() -> None:
    page = markdown_of("deploy/Dockerfile")
    assert page.startswith("# `deploy/Dockerfile`\n\n```text\n")
    assert "- `tied_processes.py`\n" in markdown_of("foreign_servers")


def test_a_summary_is_the_first_sentence() -> None:
    text = "# Title\n\n<!-- made -->\n```\ncode\n```\n\nA [store](a.md) of\nstreams. More.\n"
    assert summary_of(text) == "A store of streams."
    assert summary_of("# Title\n\n| a |\n") == ""


@dataclass
class Item:
    """A page or a section of MkDocs' navigation."""

    title: str
    place: str = ""
    children: list[Item] = field(default_factory=list)
    is_link: bool = False

    @property
    def is_page(self) -> bool:
        return bool(self.place)

    @property
    def is_section(self) -> bool:
        return not self.place

    @property
    def file(self) -> Any:
        return type("File", (), {"src_uri": self.place})


def test_pages_are_listed_with_their_sections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n\nOne thing. Two.\n")
    monkeypatch.setattr(site_hooks, "ROOT", tmp_path)
    listed = list_pages([Item("Home", "a.md"), Item("Do", children=[Item("A", "a.md")])])
    assert listed == "- [Home](a.md): One thing.\n\n## Do\n\n- [A](a.md): One thing.\n"

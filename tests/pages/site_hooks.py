"""Hooks of MkDocs, which makes a site of ``docs/``: ``make docs`` runs them.

Owns: the pages of the site that lie outside ``docs/``, and ``llms.txt``. Links of the documents are
those of the repository: a link out of ``docs/`` leads on the site to a page made of that file, a
link to a folder to its README. ``llms.txt`` lists the pages for programs, each as Markdown.

MkDocs is not among the packages of the tests: only the hooks themselves import it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = "repository"
"""The folder of the site with the files that lie outside ``docs/``."""
FRONT = "README.md"
"""The front page of ``docs/``, which the README of the repository leads to."""
_FENCE = re.compile(r"(^```.*?^```[^\S\n]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".java": "java"}
_SUMMARY_CHARACTERS_MAX = 200


def place_on_site(name: str) -> str | None:
    """Return the place on the site of a file or folder of the repository; None if it is missing."""
    if (ROOT / name / "README.md").is_file():
        name = posixpath.normpath(posixpath.join(name, "README.md"))
    if not (ROOT / name).exists():
        return None
    if name == "README.md":
        return FRONT
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return f"{FOLDER}/{name}" if name.endswith(".md") else f"{FOLDER}/{name}.md"


def source_of(place: str) -> str:
    """Return the name in the repository of the file that a page of the site is made of."""
    if not place.startswith(f"{FOLDER}/"):
        return f"docs/{place}"
    name = place.removeprefix(f"{FOLDER}/")
    return name if (ROOT / name).exists() else name.removesuffix(".md")


def change_links(text: str, change: Callable[[str], str | None]) -> str:
    """Return Markdown with other targets of links to files; None leaves a target as it is."""

    def replace(match: re.Match[str]) -> str:
        target = None if "://" in match[2] or match[2].startswith("mailto:") else change(match[2])
        return match[1] + (target or match[2]) + match[3]

    parts = _FENCE.split(text)
    return "".join(
        part if number % 2 else _LINK.sub(replace, part) for number, part in enumerate(parts)
    )


def lead_on_site(text: str, name: str) -> str:
    """Return the text of a file of the repository with the links that it has on the site."""
    here = posixpath.dirname(place_on_site(name) or "")

    def change(target: str) -> str | None:
        place = place_on_site(resolve(target, name))
        return posixpath.relpath(place, here or ".") if place else None

    return change_links(text, change)


def resolve(target: str, name: str) -> str:
    """Return the name in the repository that a link of a file leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), target))


def pages_outside(names: Iterable[str]) -> dict[str, str]:
    """Return the files outside ``docs/`` that these files link to, directly or not, by place."""
    found: dict[str, str] = {}
    waiting = [name for name in names if name.endswith(".md")]
    while waiting:
        name = waiting.pop()
        targets: list[str] = []
        change_links((ROOT / name).read_text("utf-8"), lambda each, to=targets: to.append(each))  # type: ignore[misc]
        for target in targets:
            place = place_on_site(resolve(target, name))
            if place and place.startswith(f"{FOLDER}/") and place not in found:
                found[place] = source_of(place)
                if found[place].endswith(".md"):
                    waiting.append(found[place])
    return found


def markdown_of(name: str) -> str:
    """Return the page of a file or folder outside ``docs/``: its text, its source, its files."""
    if (ROOT / name).is_dir():
        files = sorted(each.name for each in (ROOT / name).iterdir() if each.is_file())
        return f"# `{name}/`\n\n" + "".join(f"- `{each}`\n" for each in files)
    text = (ROOT / name).read_text("utf-8")
    if name.endswith(".md"):
        return text
    return f"# `{name}`\n\n```{_LANGUAGES.get(Path(name).suffix, 'text')}\n{text}```\n"


def summary_of(text: str) -> str:
    """Return the first sentence of a page, without links and line ends."""
    for paragraph in _COMMENT.sub("", _FENCE.sub("", text)).split("\n\n"):
        if paragraph.strip() and not paragraph.lstrip().startswith(("#", "|", "!", "- ", ">")):
            plain = " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph).split())
            sentence = re.split(r"(?<=[.:])\s(?=[A-Z`])", plain)[0].rstrip(":")
            return sentence[:_SUMMARY_CHARACTERS_MAX]
    return ""


def list_pages(navigation: Iterable[Any], depth: int = 2) -> str:
    """Return the navigation as a list, each page with its summary."""
    lines = []
    for item in navigation:
        if item.is_page:
            # Of a page without a title in the navigation, its own is known once it is made.
            text = (ROOT / source_of(item.file.src_uri)).read_text("utf-8")
            lines.append(f"- [{item.title}]({item.file.src_uri}): {summary_of(text)}\n")
        elif item.is_section:
            lines.append(f"\n{'#' * depth} {item.title}\n\n" + list_pages(item.children, depth + 1))
    return "".join(lines)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside ``docs/`` that the navigation or a document leads to."""
    from mkdocs.structure.files import File

    roots = [f"docs/{each.src_uri}" for each in files.documentation_pages()]
    wanted = re.findall(rf"\b{FOLDER}/\S+\.md", (ROOT / "mkdocs.yml").read_text("utf-8"))
    pages = pages_outside(roots) | {place: source_of(place) for place in wanted}
    pages |= pages_outside(pages.values())
    for place, name in sorted(pages.items()):
        files.append(File.generated(config, place, content=markdown_of(name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links lead where their targets are on the site."""
    return lead_on_site(markdown, source_of(page.file.src_uri))


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Keep the navigation for ``llms.txt``."""
    config.extra["navigation"] = nav
    return nav


def on_post_build(config: Any) -> None:
    """Write ``llms.txt``, and each page of it as Markdown beside its HTML."""
    navigation = config.extra["navigation"]
    site = Path(config.site_dir)
    text = f"# {config.site_name}\n\n> {config.site_description}\n\n"
    (site / "llms.txt").write_text(text + list_pages(navigation), "utf-8")
    for page in navigation.pages:
        name = source_of(page.file.src_uri)
        target = site / page.file.src_uri
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(lead_on_site((ROOT / name).read_text("utf-8"), name), "utf-8")

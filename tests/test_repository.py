"""Rules of the repository that no linter knows: structure, language, documents that are true.

One process runs them all: it parses each file once, and keeps what the rules ask for.
"""

import ast
import fnmatch
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from support.statements import parse_source, walk_statements

pytestmark = pytest.mark.xdist_group("repository")

ROOT = Path(__file__).resolve().parent.parent
FILE_BYTES_MAX = 1024 * 1024
FUNCTION_LINES_MAX = 70

# Left to itself this file would find its own patterns.
SPEAKS_OF_OTHER_THINGS = {
    "a path of somebody's machine": r"/work/|/home/\w|/Users/\w|\.\./shared",
    "unfinished work": r"\b(?:TODO|FIXME|XXX)\b",
    "an issue by number": r"\b[Ii]ssue #?\d",
    "a merge conflict": r"^(?:<<<<<<<|>>>>>>>) ",
}
FOREIGN_NOUNS = re.compile(r"(?:^|_)(?:topic|broker|ledger)s?(?:_|$)", re.IGNORECASE)
BARE_CLAUSES = (
    r"(?:How|That|Those|What|Whatever|When|Where|Whether|Which|Who|Whoever|Whom|Whose|Why)\b"
)
BAD_NOUNS = re.compile(r"(?:Impl|(?<!^Cache)Manager|Util|Utils|Base)$")
"""The cache manager is a noun of the streaming cache's design."""
SPEAKS_OF_LEDGERS = ("src/bookkeeper_client/", "src/segstore/tiers/bookkeeper/")
"""There it is BookKeeper's own noun, and what the modules are about."""
GENERATED = {
    "src/bookkeeper_client/data_formats_pb2.py",
    "src/bookkeeper_client/data_formats_pb2.pyi",
    "src/pravega_wire/controller_pb2.py",
    "src/pravega_wire/controller_pb2.pyi",
}


@cache
def tracked_files() -> list[Path]:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


@cache
def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def python_sources(folder: str = "src") -> list[Path]:
    return [
        path
        for path in tracked_files()
        if path.suffix == ".py" and name_of(path).startswith(f"{folder}/")
        if name_of(path) not in GENERATED
    ]


def text_files() -> list[Path]:
    suffixes = {".py", ".pyx", ".pxd", ".pyi", ".md", ".toml", ".proto", ".java", ".xml", ".yaml"}
    plain = {"Makefile", "run", "prepare"}
    return [path for path in tracked_files() if path.suffix in suffixes or path.name in plain]


def markdown_files() -> list[Path]:
    return [path for path in tracked_files() if path.suffix == ".md"]


class Definition(NamedTuple):
    """A class or function of a Python source; its decorators as they are written."""

    line: int
    end_line: int
    name: str
    is_class: bool
    is_top: bool
    decorators: tuple[str, ...]
    docstring: str


class Source(NamedTuple):
    """What the rules ask for of a Python source."""

    docstring: str
    definitions: list[Definition]

    @property
    def functions(self) -> list[Definition]:
        return [each for each in self.definitions if not each.is_class]


@cache
def source_of(path: Path) -> Source:
    tree = parse_source(path)
    definitions = [
        Definition(
            node.lineno,
            node.end_lineno or node.lineno,
            node.name,
            isinstance(node, ast.ClassDef),
            node in tree.body,
            tuple(map(ast.unparse, node.decorator_list)),
            ast.get_docstring(node) or "",
        )
        for node in walk_statements(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return Source(ast.get_docstring(tree) or "", definitions)


# ---- Files ---------------------------------------------------------------------------------------


def test_no_large_or_built_file_is_tracked() -> None:
    built = {".so", ".o", ".c", ".class", ".jar", ".whl", ".pyc"}
    offenders = [
        name_of(path)
        for path in tracked_files()
        if path.stat().st_size > FILE_BYTES_MAX or path.suffix in built
    ]
    assert offenders == []


def test_files_speak_of_the_product_alone() -> None:
    offenders = []
    for path in text_files():
        if path == Path(__file__).resolve():
            continue
        text = path.read_text()
        for what, pattern in SPEAKS_OF_OTHER_THINGS.items():
            for found in re.finditer(pattern, text, re.MULTILINE):
                number = text.count("\n", 0, found.start()) + 1
                offenders.append(f"{name_of(path)}:{number}: {what}")
    assert offenders == []


DANGEROUS_CALLS = re.compile(
    r"(?:pickle|cPickle|dill|cloudpickle|marshal|shelve)\.(?:loads?|open|Unpickler)"
    r"|(?:builtins\.)?(?:eval|exec)|os\.(?:system|popen)|subprocess\.get(?:status)?output"
    r"|yaml\.(?:unsafe_|full_)?load(?:_all)?|tempfile\.mktemp"
)
"""Calls that run, or may run, what others have written."""
PICKLES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
MAY_BE_DANGEROUS = re.compile(rf"\bshell\b|{'|'.join(PICKLES)}|{DANGEROUS_CALLS.pattern}")
"""Only sources with a word of these are looked at more closely."""
GENERATES_CODE = {"src/pravega_wire/codec.py"}
"""It runs code that it has made of the declarations beside it, before any byte has come."""


def test_the_product_does_not_run_what_others_write() -> None:
    offenders, found = [], set()
    for path in python_sources():
        text = path.read_text()
        for node in ast.walk(parse_source(path)) if MAY_BE_DANGEROUS.search(text) else ():
            where = f"{name_of(path)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [each.name for each in node.names]
                modules.append(getattr(node, "module", None) or "")
                if PICKLES & set(modules):
                    offenders.append(f"{where}: import")
            if isinstance(node, ast.Call):
                if DANGEROUS_CALLS.fullmatch(ast.unparse(node.func)):
                    found.add(name_of(path))
                    if name_of(path) not in GENERATES_CODE:
                        offenders.append(f"{where}: {ast.unparse(node.func)}")
                if any(each.arg == "shell" for each in node.keywords):
                    offenders.append(f"{where}: shell=")
    assert offenders == []
    assert found == GENERATES_CODE


SECRET_NAMES = re.compile(r"password|secret|signature|derived|digest|token$")


def test_secrets_are_compared_in_constant_time() -> None:
    """A comparison that ends at the first difference tells how much of a guess was right."""
    offenders, compared = [], 0
    for path in python_sources():
        if not name_of(path).startswith("src/pravega_security/"):
            continue
        for node in ast.walk(parse_source(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "hmac.compare_digest":
                compared += 1
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
                sides = [ast.unparse(each) for each in (node.left, *node.comparators)]
                # Not an empty text, a length or the state of a file.
                if any(
                    re.fullmatch(rf"[\w.]*(?:{SECRET_NAMES.pattern})[\w.]*", each.lower())
                    for each in sides
                ):
                    offenders.append(f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}")
    assert offenders == []
    assert compared >= 2


# ---- Modules -------------------------------------------------------------------------------------


def module_docstring(path: Path) -> str:
    """Return the docstring of a module in Python or Cython; empty if it has none."""
    if path.suffix == ".py":
        return source_of(path).docstring
    found = re.match(r'\s*r?"""(.*?)"""', path.read_text(), re.DOTALL)
    return found[1] if found else ""


def modules(folder: str) -> list[Path]:
    cython = [
        path
        for path in tracked_files()
        if path.suffix in (".pyx", ".pxd") and name_of(path).startswith(f"{folder}/")
    ]
    return python_sources(folder) + cython


def test_modules_open_with_what_they_own() -> None:
    assert [name_of(path) for path in modules("src") if not module_docstring(path)] == []


def test_docstrings_of_modules_begin_with_a_statement() -> None:
    checked, offenders = 0, []
    for folder in ("src", "tests", "benchmarks", "compat-tests", "deploy", "foreign_servers"):
        for path in modules(folder):
            first = re.match(r"[^.:?]*[.:?]?", module_docstring(path))[0]  # type: ignore[index]
            checked += 1
            # A benchmark may open with the question that it answers.
            if re.match(BARE_CLAUSES, first) and not first.endswith("?"):
                offenders.append(f"{name_of(path)}: {first}")
    assert offenders == [], "begin with a verb, as 'Encodes ...', or a noun, as 'The codec of ...'"
    assert checked > 900


def test_docstrings_of_the_product_begin_with_a_statement() -> None:
    """A docstring of a class, field or constant says 'The reason why ...', not 'Why ...'."""
    assert [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in tracked_files()
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd") and name_of(path).startswith("src/")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.match(rf'\s*r?"""{BARE_CLAUSES}', line)
    ] == []


def invariants_of(path: Path) -> list[str]:
    """Return the numbered points below ``Invariants`` in a module's docstring, each on one line."""
    section = re.search(
        r"^Invariants[^\n]*:\n(.*?)(?:\n\n|\Z)", module_docstring(path), re.M | re.S
    )
    points = re.split(r"^\d+\. ", section[1], flags=re.MULTILINE)[1:] if section else []
    return [" ".join(point.split()) for point in points]


def holders_of(point: str) -> list[str]:
    """Return the tests that an invariant names behind ``Held by``."""
    return re.findall(r"``([Tt]est\w+)``", point.partition("Held by")[2])


def test_invariants_name_tests_that_exist() -> None:
    known, offenders = set(), []
    for folder in ("tests", "compat-tests"):
        for path in python_sources(folder):
            pattern = r"^\s*(?:async )?def (test_\w+)|^(Test\w+) = "
            for found in re.finditer(pattern, path.read_text(), re.MULTILINE):
                known.add(found[1] or found[2])
    for path in modules("src"):
        for number, point in enumerate(invariants_of(path), 1):
            tests = holders_of(point)
            if not tests:
                offenders.append(f"{name_of(path)}: invariant {number} names no test")
            offenders += [f"{name_of(path)}: no {name}" for name in tests if name not in known]
    assert offenders == []


def test_functions_stay_small() -> None:
    offenders = []
    for path in python_sources():
        for function in source_of(path).functions:
            length = function.end_line - function.line + 1
            if length > FUNCTION_LINES_MAX:
                where = f"{name_of(path)}:{function.line}"
                offenders.append(f"{where}: {function.name}, {length} lines")
    assert offenders == []


def test_names_are_those_of_the_product() -> None:
    offenders = []
    for path in python_sources():
        for each in source_of(path).definitions:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", each.name)
            if name_of(path).startswith(SPEAKS_OF_LEDGERS):
                words = re.sub(r"(?i)ledgers?", "", words)
            if FOREIGN_NOUNS.search(words) or (each.is_class and BAD_NOUNS.search(each.name)):
                offenders.append(f"{name_of(path)}:{each.line}: {each.name}")
    assert offenders == []


def function_docstrings(path: Path) -> list[tuple[int, str]]:
    """Return line and text of the docstrings of functions that are neither tests nor fixtures, in
    Python or Cython. The docstring of a fixture describes the value that it makes.
    """
    if path.suffix in (".py", ".pyi"):
        return [
            (function.line, function.docstring)
            for function in source_of(path).functions
            if not function.name.startswith("test_")
            if not any("fixture" in each for each in function.decorators)
            if function.docstring
        ]
    text = path.read_text()
    # A head ends at the first colon that ends a line, and has no empty line.
    heads = re.compile(
        r'^[ \t]*c?p?def (?!class |extern )(?:[^:\n]|:(?!\n)|\n(?!\n))*:\n\s*"""(.*?)"""',
        re.MULTILINE | re.DOTALL,
    )
    return [(text.count("\n", 0, each.start(1)) + 1, each[1]) for each in heads.finditer(text)]


def test_docstrings_of_functions_begin_with_an_imperative_verb() -> None:
    verbs = set((ROOT / "tests/docstring_verbs.txt").read_text().split())
    checked, offenders = 0, []
    for path in tracked_files():
        if path.suffix not in (".py", ".pyi", ".pyx", ".pxd"):
            continue
        if name_of(path) in GENERATED:
            continue
        for line, text in function_docstrings(path):
            checked += 1
            if re.match(r"\w*", text.lstrip())[0] not in verbs:  # type: ignore[index]
                offenders.append(f"{name_of(path)}:{line}: {text.splitlines()[0]}")
    assert offenders == [], "begin with a verb, or add it to tests/docstring_verbs.txt"
    assert checked > 4000


def test_classes_of_a_package_have_different_names() -> None:
    homes: dict[tuple[str, str], list[str]] = {}
    for path in python_sources():
        for each in source_of(path).definitions:
            if each.is_class and each.is_top:
                package = name_of(path).split("/")[1]
                homes.setdefault((package, each.name), []).append(name_of(path))
    assert {key: paths for key, paths in homes.items() if len(paths) > 1} == {}


def test_tests_mirror_the_sources() -> None:
    homeless = []
    for path in python_sources("tests"):
        folder = path.parent.relative_to(ROOT / "tests")
        top = folder.parts[0] if folder.parts else ""
        if (ROOT / "src" / top).is_dir() and not (ROOT / "src" / folder).is_dir():
            homeless.append(name_of(path))
    assert homeless == []


def test_a_test_that_starts_a_process_fails_without_the_marker() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"mark it with pytest\.mark\.processes"):
        subprocess.run(["true"], check=True)


NO_DEADLINES = {
    "compat-tests/cluster/test_stores.py": {"GAP_SECONDS_MAX"},
    "compat-tests/python/test_python_client.py": {"SLICE_SECONDS_MAX"},
    "compat-tests/vortex/cluster.py": {"SECURE_JUMP_SECONDS_MAX"},
    "compat-tests/vortex/faults.py": {"DRAINED_SECONDS_MAX"},
    "compat-tests/vortex/workers.py": {"PAUSE_SECONDS_MAX"},
    "foreign_servers/processes.py": {"STOP_SECONDS_MAX"},
}
"""Bounds that are the subject of a test, or ways to be rough with a server."""
ELSEWHERE = {"compat-tests/python/api_tour.py", "compat-tests/python/numbers_in_order.py"}
"""Programs for other Pythons, which import nothing of the repository."""
DEADLINE_SECONDS_MIN = 60


def test_deadlines_of_tests_that_start_processes_are_long_and_scaled() -> None:
    checked, offenders = 0, []
    for path in python_sources("compat-tests") + python_sources("foreign_servers"):
        for node in parse_source(path).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            name = node.targets[0].id
            if not name.endswith("SECONDS_MAX") or name in NO_DEADLINES.get(name_of(path), ()):
                continue
            found = re.fullmatch(r"(?:scale\()?([\d.]+)\)?", ast.unparse(node.value))
            checked += 1
            is_scaled = "scale(" in ast.unparse(node.value) or name_of(path) in ELSEWHERE
            if not is_scaled or (found and float(found[1]) < DEADLINE_SECONDS_MIN):
                offenders.append(f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}")
    assert offenders == [], "scale(seconds) of foreign_servers.deadlines, and a minute at least"
    assert checked > 50


def test_no_test_is_switched_off() -> None:
    offenders = [
        f"{name_of(path)}:{number}"
        for folder in ("tests", "compat-tests")
        for path in python_sources(folder)
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"mark\.(?:skip|xfail)\b(?!if)", line)
    ]
    assert offenders == []


# ---- Documents -----------------------------------------------------------------------------------


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in markdown_files():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{name_of(path)} -> {target}")
    assert broken == []


def test_every_decision_is_in_the_index_under_its_title() -> None:
    index = (ROOT / "docs/adr/README.md").read_text()
    rows = dict(re.findall(r"^\| \[\d{4}\]\(([^)]+)\) \| (.+) \|$", index, re.MULTILINE))
    pages = {
        path.name: path.read_text().splitlines()[0]
        for path in tracked_files()
        if path.parent == ROOT / "docs/adr" and path.name != "README.md"
    }
    assert rows.keys() == pages.keys()
    for name, heading in pages.items():
        number = name[:4]
        assert heading.startswith(f"# {number}: "), name
        if number != "0000":
            assert rows[name] == heading.removeprefix(f"# {number}: ")


def test_the_folder_table_names_every_folder() -> None:
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    named = set(re.findall(r"^\| `([^`]+)/` \|", text, re.MULTILINE))
    packages = {f"src/{path.parent.name}" for path in (ROOT / "src").glob("*/__init__.py")}
    others = {
        name_of(path).split("/")[0]
        for path in tracked_files()
        if "/" in name_of(path) and not name_of(path).startswith((".", "src/"))
    }
    assert named == packages | others


def test_functions_that_the_pages_about_the_inside_name_exist() -> None:
    folder = ROOT / "docs/internals"
    ways = re.findall(r"^\| \[([\w-]+\.md)\]", (folder / "README.md").read_text(), re.MULTILINE)
    assert {path.name for path in folder.glob("*.md")} == {"README.md", *ways}
    for way in ways:
        checked = 0
        text = (folder / way).read_text()
        for source, name in re.findall(r"`([\w/]+\.p(?:yx?|xd))(?::([^`]*))?`", text):
            file = ROOT / "src" / source
            assert file.is_file(), f"{way}: {source}"
            defined = re.findall(
                r"^\s*(?:async def|c?p?def|class)\b.*?(\w+)(?:\(|:$)", file.read_text(), re.M
            )
            if name:
                assert name in defined, f"{way}: {source}:{name}"
                checked += 1
        assert checked >= 20, f"{way} names {checked} functions"


def test_the_map_of_the_articles_names_tests_that_exist() -> None:
    rows = re.findall(
        r"^\| (?!section|---)(.+) \| (.+) \|$",
        (ROOT / "docs/articles/segment-store.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) > 70
    for section, tests in rows:
        named = re.findall(r"`([\w/]+\.py):(\w+)`", tests)
        assert named, section
        for file, name in named:
            path = ROOT / "tests" / file
            assert path.is_file(), f"{section}: {file}"
            defined = re.findall(r"^(?:async def|def)? ?(\w+)(?:\(| = )", path.read_text(), re.M)
            assert name in defined, f"{section}: {file}:{name}"


def test_the_page_about_security_names_tests_that_exist() -> None:
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs/security.md").read_text())
    known = {
        name
        for path in python_sources("tests")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 10
    assert set(named) <= known


def test_sources_that_documents_name_exist() -> None:
    files = [name_of(path) for path in tracked_files()]
    ends = {name[at:] for name in files for at in range(len(name)) if f"/{name}"[at] == "/"}
    checked, missing = 0, []
    for page in markdown_files():
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for named in re.findall(r"`([\w./-]+\.(?:pyi?|pyx|pxd|proto))(?::\w+)?`", text):
            checked += 1
            # HACKING.md has ends of names, such as ``_model.py``.
            if named not in ends and not (named[0] == "_" and fnmatch.filter(files, f"*{named}")):
                missing.append(f"{name_of(page)}: {named}")
    assert missing == []
    assert checked > 500


NEWCOMERS_PAGES = ["docs/ARCHITECTURE.md", "docs/rooms.md", "HACKING.md"] + [
    f"docs/internals/{path.name}" for path in sorted((ROOT / "docs/internals").glob("*.md"))
]
OF_THE_KERNEL = {"epoll_ctl", "EPOLL_CTL_MOD"}


def test_files_and_names_that_lead_newcomers_exist() -> None:
    files = [name_of(path) for path in tracked_files()]
    sources = [name for name in files if name.endswith((".py", ".pyx", ".pxd", ".proto"))]
    sources.remove("tests/test_repository.py")
    known = {word for name in sources for word in re.findall(r"\w+", (ROOT / name).read_text())}
    known |= OF_THE_KERNEL
    missing = []
    for page in NEWCOMERS_PAGES:
        for quoted in re.findall(r"`([^`\n]+)`", (ROOT / page).read_text()):
            if re.fullmatch(r"[\w*./-]+\.(?:pyx?|pxd|proto|toml|md)", quoted):
                if not fnmatch.filter(files, f"*{quoted}"):
                    missing.append(f"{page}: {quoted}")
            elif re.fullmatch(r"\w*(?:_|[a-z][A-Z])\w*", quoted) and quoted not in known:
                missing.append(f"{page}: {quoted}")
    assert missing == []


def test_the_changelog_has_a_place_for_what_is_new() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "\n## [Unreleased]\n" in text
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    number, _, development = version.partition(".dev")
    # What follows a release has a number of its own, so that it takes the release's place.
    assert released[0] == number or (development and number not in released)


def code_blocks(*languages: str) -> list[tuple[str, str]]:
    """Return the documents' code in these languages, each with its file."""
    return [
        (f"{name_of(path)}", block)
        for path in markdown_files()
        for language, block in re.findall(
            r"^```(\w*)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL
        )
        if language in languages
    ]


def shell_lines() -> list[tuple[str, str]]:
    """Return the commands that the documents tell people to type."""
    return [
        (where, line.removeprefix("$ "))
        for where, block in code_blocks("console")
        for line in block.splitlines()
        if line.startswith("$ ")
    ]


def test_commands_in_documents_are_commands() -> None:
    import shlex

    import typer.main

    from pravega_admin.verbs import app

    root = typer.main.get_command(app)
    checked = 0
    for where, line in shell_lines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>;&")
        lexer.whitespace_split = True
        tokens = list(lexer)
        while "segstore" in tokens:
            tokens = tokens[tokens.index("segstore") + 1 :]
            words = []
            for token in tokens:
                if set(token) <= set("|<>;&"):
                    break
                words.append(token)
            assert_parses(root, words, where=f"{where}: {line}")
            checked += 1
    assert checked > 20


def assert_parses(root: object, words: list[str], *, where: str) -> None:
    """Check that the verbs exist and take these options; nothing is run."""
    command: object = root
    name = "segstore"
    while hasattr(command, "commands"):
        assert words, where
        name, words = words[0], words[1:]
        assert name in command.commands, f"{where}: no verb {name}"
        command = command.commands[name]
    try:
        command.make_context(name, list(words))  # type: ignore[attr-defined]
    except Exception as error:
        raise AssertionError(f"{where}: {error}") from error


def test_python_in_documents_compiles() -> None:
    blocks = code_blocks("python")
    assert blocks
    for where, block in blocks:
        compile(block, where, "exec")


def test_settings_in_documents_are_settings(tmp_path: Path) -> None:
    import msgspec

    from pravega_admin.serving.settings_file import read_settings
    from pravega_controller.config import ControllerConfig
    from segstore.process.config import SegmentStoreConfig

    blocks = [item for item in code_blocks("toml") if item[0].startswith("docs/guides/")]
    assert blocks
    for where, block in blocks:
        if block.startswith("[profiles."):  # another file, of the command line
            continue
        path = tmp_path / "settings.toml"
        path.write_text(block)
        tables = read_settings(path)
        store = {"data_dir": str(tmp_path), **tables.get("segment_store", {})}
        controller = tables.get("controller", {})
        for settings, kind in ((store, SegmentStoreConfig), (controller, ControllerConfig)):
            try:
                msgspec.convert(settings, kind, dec_hook=lambda kind, value: kind(value))
            except msgspec.ValidationError as error:
                raise AssertionError(f"{where}: {error}") from error


def test_make_targets_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in markdown_files():
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text(), re.MULTILINE):
            assert target in targets, f"{name_of(path)}: make {target}"


@pytest.mark.processes
def test_make_help_lines_up_its_columns() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len({re.match(r"make [a-z-]+ +", line).end() for line in listed if line}) == 1  # type: ignore[union-attr]


def test_ci_runs_what_developers_run() -> None:
    text = (ROOT / ".ci/run").read_text()
    assert re.search(r"^exec make .*test$", text, re.MULTILINE)
    assert (ROOT / ".ci/run").stat().st_mode & 0o111

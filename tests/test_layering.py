"""Holds the one-way import rule of the house, between the packages and inside the segment store.

A package may import only what its row names, and a row names only what stands above it: so there
is no circle, and a new package has to be given a place.
"""

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from support.statements import parse_source, walk_statements

pytestmark = pytest.mark.xdist_group("layering")

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"

MAY_IMPORT: dict[str, set[str]] = {
    "_fast": set(),
    "pravega_wire": {"_fast"},
    "pravega_metrics": {"_fast"},
    "pravega_security": {"pravega_wire"},
    "zookeeper_client": set(),
    "bookkeeper_client": {"_fast", "zookeeper_client"},
    "pravega_cluster": {"pravega_wire", "zookeeper_client"},
    "segstore": {
        "_fast",
        "pravega_wire",
        "pravega_metrics",
        "pravega_security",
        "zookeeper_client",
        "bookkeeper_client",
        "pravega_cluster",
    },
    "pravega_controller": {
        "_fast",
        "pravega_wire",
        "pravega_metrics",
        "pravega_security",
        "zookeeper_client",
        "pravega_cluster",
    },
    "segstore_client": {"_fast", "pravega_wire", "pravega_security"},
    "pravega_spark": {"_fast", "pravega_wire", "pravega_security", "segstore_client"},
    "pravega_admin": {
        "_fast",
        "pravega_wire",
        "pravega_metrics",
        "pravega_security",
        "zookeeper_client",
        "bookkeeper_client",
        "pravega_cluster",
        "segstore",
        "pravega_controller",
        "segstore_client",
        "pravega_spark",
    },
}

INSIDE_SEGSTORE: dict[str, set[str]] = {
    "errors": set(),
    "runtime": {"errors"},
    "tls": {"errors", "runtime"},
    "tiers": {"errors"},
    "tiers.memory": {"errors", "tiers"},
    "tiers.noop": {"errors", "tiers"},
    "tiers.journal": {"errors", "runtime", "tiers"},
    "tiers.bookkeeper": {"errors", "runtime", "tls", "tiers"},
    "tiers.files": {"errors", "runtime", "tiers"},
    "tiers.s3": {"errors", "runtime", "tiers"},
    "tiers.hdfs": {"errors", "runtime", "tiers"},
    "ownership": {"errors", "runtime", "tiers", "tiers.journal"},
    "chunks": {"errors", "runtime", "tiers", "ownership"},
    "model": {"errors", "tiers"},
    "api": {"errors", "tiers", "chunks", "model"},
    "cache": set(),
    "throttling": set(),
    "read_index": {"errors", "runtime", "tiers", "chunks", "model", "api", "cache"},
    "attributes": {"errors", "runtime", "chunks", "model"},
    "durable_log": {
        "errors",
        "runtime",
        "tiers",
        "chunks",
        "model",
        "cache",
        "throttling",
        "read_index",
        "attributes",
    },
    "writer": {
        "errors",
        "runtime",
        "tiers",
        "chunks",
        "model",
        "read_index",
        "attributes",
        "durable_log",
    },
    "inactive": {"errors", "model", "api", "read_index", "attributes", "durable_log", "writer"},
    "container": {
        "errors",
        "runtime",
        "tiers",
        "ownership",
        "chunks",
        "model",
        "api",
        "cache",
        "throttling",
        "read_index",
        "attributes",
        "durable_log",
        "writer",
        "inactive",
    },
    "tables": {"errors", "tiers", "model", "api"},
    "process": {
        "errors",
        "runtime",
        "tiers",
        "tiers.journal",
        "tiers.bookkeeper",
        "tiers.files",
        "tiers.s3",
        "tiers.hdfs",
        "ownership",
        "chunks",
        "model",
        "api",
        "cache",
        "throttling",
        "inactive",
        "writer",
        "container",
        "tables",
    },
    "load": {"errors", "tiers", "model", "api", "process"},
    "network": {
        "errors",
        "runtime",
        "tls",
        "ownership",
        "chunks",
        "model",
        "api",
        "tables",
        "process",
        "load",
    },
    "repair": {
        "errors",
        "runtime",
        "tiers",
        "tiers.journal",
        "tiers.files",
        "ownership",
        "chunks",
        "model",
        "attributes",
        "tables",
        "process",
    },
}
"""The packages and modules of ``segstore``, each with those that it may import, from the lowest
to the highest. ``segstore.testing``, which puts stores together for tests, may import all."""

INSIDE_CONTROLLER: dict[str, set[str]] = {
    "errors": set(),
    "authority": set(),
    "config": {"authority"},
    "clocks": set(),
    "rules": {"errors"},
    "store_client": {"errors", "authority"},
    "metadata": {"errors", "clocks", "rules", "store_client"},
    "background": {"errors", "config", "store_client", "metadata"},
    "tables": {"errors", "rules", "store_client", "metadata", "background"},
    "watermarks": {"errors", "rules", "store_client", "metadata"},
    "streams": {"errors", "clocks", "rules", "store_client", "metadata", "background"},
    "groups": {"errors", "rules", "store_client", "metadata", "streams"},
    "scaling": {"errors", "rules", "store_client", "metadata", "background", "streams"},
    "retention": {"errors", "clocks", "rules", "store_client", "metadata", "streams"},
    "transactions": {
        "errors",
        "rules",
        "store_client",
        "metadata",
        "background",
        "watermarks",
        "streams",
    },
    "scopes": {"errors", "store_client", "metadata", "background", "tables", "streams", "groups"},
    "controller": {
        "errors",
        "config",
        "clocks",
        "store_client",
        "metadata",
        "background",
        "tables",
        "watermarks",
        "streams",
        "groups",
        "scaling",
        "retention",
        "transactions",
        "scopes",
    },
    "rpc": {
        "errors",
        "authority",
        "config",
        "rules",
        "metadata",
        "tables",
        "watermarks",
        "transactions",
        "controller",
    },
    "http": {"errors", "config", "rules", "controller", "rpc"},
    "console": {
        "errors",
        "clocks",
        "rules",
        "store_client",
        "groups",
        "controller",
        "http",
    },
    "server": {"config", "clocks", "controller", "rpc", "http", "console"},
}
"""The packages and modules of ``pravega_controller``, likewise. Its ``testing`` may import all."""

INSIDE_BOOKKEEPER_CLIENT: dict[str, set[str]] = {
    "errors": set(),
    "quorums": set(),
    "data_formats_pb2": set(),
    "wire": {"errors"},
    "registry": {"errors", "data_formats_pb2"},
    "connections": {"errors", "wire"},
    "metadata": {"errors", "quorums", "data_formats_pb2", "wire"},
    "ledger_store": {"errors", "metadata"},
    "state_machines": {"errors", "quorums", "wire", "metadata"},
    "readable_ledger": {"wire", "connections", "metadata", "state_machines"},
    "client": {
        "errors",
        "quorums",
        "wire",
        "registry",
        "connections",
        "metadata",
        "ledger_store",
        "state_machines",
        "readable_ledger",
    },
}
INSIDE_PRAVEGA_SPARK: dict[str, set[str]] = {
    "errors": set(),
    "interpreter": set(),
    "plain_errors": set(),
    "checkpoints": set(),
    "commit_log": {"errors"},
    "options": {"errors"},
    "payloads": {"errors", "options"},
    "reading": {"errors", "options"},
    "committer": {"commit_log", "options"},
    "sink": {"errors", "plain_errors", "checkpoints", "commit_log", "committer", "options"},
    "source": {"errors", "plain_errors", "options", "payloads", "reading", "sink"},
    "jobs": {"source"},
}
INSIDE_SEGSTORE_CLIENT: dict[str, set[str]] = {
    "errors": set(),
    "addresses": {"errors"},
    "backoff": {"errors"},
    "positions": set(),
    "leases": {"errors"},
    "inputs": {"errors", "positions"},
    "access": {"errors"},
    "append_refusals": {"errors", "access"},
    "delays": {"errors", "backoff", "access"},
    "controller": {"errors", "addresses", "backoff", "access"},
    "cuts": {"errors", "addresses", "backoff", "positions", "inputs", "access", "controller"},
    "control": {"errors", "positions", "access", "controller", "cuts"},
    "steps": {"errors", "positions", "inputs", "controller", "cuts"},
    "serializers": {"errors", "inputs"},
    "frames": {"errors"},
    "blocking": {
        "errors",
        "addresses",
        "backoff",
        "positions",
        "leases",
        "inputs",
        "access",
        "append_refusals",
        "delays",
        "controller",
        "cuts",
        "control",
        "steps",
        "serializers",
        "frames",
    },
    "connections": {
        "errors",
        "addresses",
        "backoff",
        "access",
        "controller",
        "steps",
    },
    "reading": {"errors", "addresses", "backoff", "access", "controller", "connections"},
    "writing": {
        "errors",
        "addresses",
        "backoff",
        "inputs",
        "access",
        "append_refusals",
        "delays",
        "controller",
        "serializers",
        "connections",
    },
    "event_writer": {"errors", "backoff", "cuts", "serializers", "connections", "writing"},
    "event_reader": {
        "errors",
        "backoff",
        "positions",
        "controller",
        "cuts",
        "serializers",
        "frames",
        "connections",
        "reading",
    },
    "transaction": {
        "errors",
        "backoff",
        "leases",
        "delays",
        "controller",
        "serializers",
        "connections",
        "writing",
    },
    "table": {"controller", "steps", "connections"},
    "states": {"errors", "backoff", "controller", "cuts", "steps", "connections"},
    "byte_streams": {
        "errors",
        "backoff",
        "positions",
        "access",
        "delays",
        "controller",
        "steps",
        "connections",
        "reading",
        "writing",
    },
    "groups": {
        "errors",
        "positions",
        "access",
        "controller",
        "steps",
        "serializers",
        "connections",
        "reading",
        "event_reader",
        "states",
    },
    "store": {
        "addresses",
        "backoff",
        "positions",
        "leases",
        "access",
        "delays",
        "controller",
        "cuts",
        "control",
        "steps",
        "serializers",
        "frames",
        "connections",
        "event_writer",
        "event_reader",
        "transaction",
        "table",
        "states",
        "byte_streams",
        "groups",
    },
}
INSIDE_PRAVEGA_ADMIN: dict[str, set[str]] = {
    "errors": set(),
    "exports": set(),
    "lazy_imports": set(),
    "inspection": {"errors"},
    "logins": {"errors"},
    "output": {"errors", "logins"},
    "supervisor": {"errors"},
    "options": {"logins", "output"},
    "serving": {"errors", "lazy_imports", "output", "supervisor"},
    "commands": {
        "errors",
        "exports",
        "inspection",
        "logins",
        "output",
        "supervisor",
        "options",
        "serving",
    },
    "verbs": {"errors", "output", "serving"},
    "cli": {"errors", "output", "supervisor", "serving", "verbs"},
    "__main__": {"supervisor", "serving", "cli"},
}

INSIDE = {
    "segstore": INSIDE_SEGSTORE,
    "pravega_controller": INSIDE_CONTROLLER,
    "bookkeeper_client": INSIDE_BOOKKEEPER_CLIENT,
    "segstore_client": INSIDE_SEGSTORE_CLIENT,
    "pravega_spark": INSIDE_PRAVEGA_SPARK,
    "pravega_admin": INSIDE_PRAVEGA_ADMIN,
}
"""The packages that have floors inside."""

NAMED_TUPLE_METHODS = {"_asdict", "_fields", "_make", "_replace"}

PRIVATE_NAMES_OF_OTHERS: dict[str, set[str]] = {
    # grpcio's own classes have no public name for what an immediate answer needs.
    "pravega_controller/rpc/service.py": {
        "_grpcio._RECEIVE_MESSAGE_TOKEN",
        "_grpcio._receive_message",
        "_grpcio._status",
        "context._rpc_event",
        "context._state",
    },
    # Neither has PySpark for its context and the Java objects behind it.
    "pravega_spark/interpreter.py": {"SparkContext._active_spark_context"},
    "pravega_spark/jobs/compact.py": {"spark.sparkContext._jsc", "spark.sparkContext._jvm"},
    "pravega_spark/jobs/session.py": {"SparkContext._gateway"},
    "pravega_spark/jobs/watch.py": {"spark.sparkContext._jsc"},
}
"""The private names that modules may use of others, with the reasons."""

PRIVATE_NAMES_IN_TESTS_MAX = 174
"""Maximum number of private names of other modules that files of tests and benchmarks use. Make it
smaller: let a test look at what its subject tells, or give the name to all."""

PRIVATE_NAMES_OF_BASES_MAX = 87
"""Maximum number of private names of a base that its subclasses in other modules use. Make it
smaller: give what subclasses need a public name, or hand the subclass's part to the base. A class
that users see keeps its names private."""

LOOSE_MODULES_MAX = 16

INSIDE_FAST: dict[str, set[str]] = {
    "": set(),
    "metrics": set(),
    "wire": {"", "metrics"},
    "log": {""},
    "cache": {""},
    "btree": {"", "cache"},
    "native_io": {""},
}
"""The folders of ``_fast``, each with those that it may import from. The first is ``_fast`` itself:
checksums, hashes and numbers. The last one's modules call the kernel; no other does."""


@functools.cache
def imports_of(source: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    tree = parse_source(source)
    return tuple(
        node for node in walk_statements(tree) if isinstance(node, ast.Import | ast.ImportFrom)
    )


def imported_modules(source: Path) -> set[str]:
    """Return the dotted names that a module imports.

    Of a package, the names that are taken from it.
    """
    names: set[str] = set()
    for node in imports_of(source):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif node.module is not None:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def place_of(module: str) -> str:
    """Return the row of a module, in the table of its package: that of its folder, or its own."""
    package, *words = module.split(".")
    return max(
        (row for row in INSIDE[package] if words[: row.count(".") + 1] == row.split(".")),
        key=len,
        default=".".join(words[:1]),
    )


def imported_packages(source: Path) -> set[str]:
    names: set[str] = set()
    for node in imports_of(source):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{source}: imports are absolute in this house"
            assert node.module is not None
            names.add(node.module)
    return {name.partition(".")[0] for name in names} & MAY_IMPORT.keys()


def test_every_package_under_src_is_in_the_layering_table() -> None:
    packages = {path.parent.name for path in SRC.glob("*/__init__.py")}
    assert packages <= MAY_IMPORT.keys()


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_go_one_way(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    for source in sorted((SRC / package).rglob("*.py")):
        strangers = imported_packages(source) - allowed
        assert not strangers, f"{source.relative_to(SRC)} may not import {sorted(strangers)}"


@pytest.mark.parametrize("folder", ["src", "deploy", "foreign_servers"])
def test_the_product_stands_on_no_benchmark(folder: str) -> None:
    for source in sorted((SRC.parent / folder).rglob("*.py")):
        strangers = {name for name in imported_modules(source) if name.startswith("benchmarks.")}
        assert not strangers, f"{source} imports {sorted(strangers)}"


def test_foreign_functions_are_declared_to_the_compiler() -> None:
    """Only ``segstore.runtime.kernel_build`` declares them: a C compiler knows their structures."""
    strangers = [
        str(source) for source in SRC.rglob("*.py") if "ctypes" in imported_modules(source)
    ]
    assert strangers == []


def test_cython_sources_import_nothing_of_the_house() -> None:
    for source in sorted((SRC / "_fast").rglob("*.pyx")):
        for line in source.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["cimport"], ["from"]):
                assert words[1].partition(".")[0] not in MAY_IMPORT.keys() - {"_fast"}, line


@pytest.mark.parametrize("package", INSIDE)
def test_rows_inside_a_package_name_only_what_stands_above(package: str) -> None:
    above: set[str] = set()
    for row, allowed in INSIDE[package].items():
        assert allowed <= above, f"{row} names {sorted(allowed - above)} which stands below it"
        above.add(row)


@pytest.mark.parametrize("package", INSIDE)
def test_the_page_of_rooms_names_the_parts_of_a_package(package: str) -> None:
    page = (SRC.parent / "docs" / "rooms.md").read_text()
    table = page.partition(f"## Inside `{package}`")[2].partition("\n#")[0]
    named = [
        name
        for row in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]
    parts = {row for row in INSIDE[package] if "." not in row and not row.startswith("__")}
    assert set(named) - {"testing"} == parts
    assert len(named) == len(set(named))
    place = {name: number for number, name in enumerate(named)}
    for row in parts:
        for other in INSIDE[package][row] & parts:
            assert place[other] < place[row], f"{row} stands above {other}, which it imports"


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_no_folder_has_more_loose_modules_than_a_page_shows(package: str) -> None:
    folders = {source.parent for source in (SRC / package).rglob("*.py")}
    for folder in folders:
        modules = {path.stem for path in folder.glob("*.py*")} - {"__init__", "__main__"}
        assert len(modules) <= LOOSE_MODULES_MAX, f"{folder} has {len(modules)}: make a folder"


@pytest.mark.parametrize("package", INSIDE)
def test_every_module_inside_a_package_has_a_row(package: str) -> None:
    for module in modules_inside(package):
        if module != f"{package}.__init__":
            assert place_of(module) in INSIDE[package], module


@pytest.mark.parametrize("package", INSIDE)
def test_no_row_inside_a_package_allows_what_nothing_uses(package: str) -> None:
    used: dict[str, set[str]] = {row: set() for row in INSIDE[package]}
    for _, row, other in imports_inside(package):
        used[row].add(other)
    assert used == INSIDE[package]


@pytest.mark.parametrize("package", INSIDE)
def test_imports_inside_a_package_go_one_way(package: str) -> None:
    for module, row, other in imports_inside(package):
        assert other in INSIDE[package][row], f"{module} may not import {other}"


def modules_inside(package: str) -> dict[str, Path]:
    """Return the modules of a package by dotted name, but for what puts parts together for
    tests."""
    found = {
        ".".join(source.relative_to(SRC).with_suffix("").parts): source
        for source in sorted((SRC / package).rglob("*.py"))
    }
    return {
        module: source
        for module, source in found.items()
        if not module.startswith(f"{package}.testing.")
    }


def imports_inside(package: str) -> list[tuple[str, str, str]]:
    """Return each import of another row: the module, its row, the other row."""
    found = []
    for module, source in modules_inside(package).items():
        if module == f"{package}.__init__":
            continue
        for name in sorted(imported_modules(source)):
            if name.startswith(f"{package}."):
                row, other = place_of(module), place_of(name)
                if row != other:
                    found.append((module, row, other))
    return found


def fast_imports() -> dict[str, set[str]]:
    """Return the modules of ``_fast``, each with the modules of ``_fast`` that it imports."""
    pattern = re.compile(
        r"^\s*from\s+_fast\.([\w.]+)\s+c?import\b|^\s*c?import\s+_fast\.([\w.]+)", re.M
    )
    sources = {
        source: ".".join(source.relative_to(SRC / "_fast").with_suffix("").parts)
        for source in sorted((SRC / "_fast").rglob("*.p*"))
        if source.suffix in (".pyx", ".pxd")
    }
    imports: dict[str, set[str]] = {}
    for source, module in sources.items():
        text = source.read_text()
        assert not re.search(r"^\s*from\s+_fast\s+c?import\b", text, re.M), source
        found = {one or other for one, other in pattern.findall(text)}
        assert found <= set(sources.values()), f"{source} imports a folder"
        imports.setdefault(module, set()).update(found - {module})
    return imports


def test_imports_inside_the_extensions_go_one_way() -> None:
    def folder_of(module: str) -> str:
        return module.rpartition(".")[0]

    imports = fast_imports()
    tuple(TopologicalSorter(imports).static_order())
    for module, others in imports.items():
        folder = folder_of(module)
        strangers = {folder_of(other) for other in others} - INSIDE_FAST[folder] - {folder}
        assert not strangers, f"_fast.{module} may not import {sorted(strangers)}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE_METHODS


def own_names(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the functions and classes of a module, and the attributes that it assigns."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            names.update({node.attr} if is_self else ())
    return names


STRANGER_PERHAPS = re.compile(
    r"(?<!\bself)(?<!\bcls)(?<!super\(\))\._[a-z]|\bimport\b[^\n(]*(?:\([^)]*)?\b_[a-z]",
    re.IGNORECASE,
)
"""Matches a private name behind a dot or an import, wherever it stands."""


def strangers_names(source: Path) -> set[str]:
    """Return the private names of other modules that a module uses, as it writes them."""
    if not STRANGER_PERHAPS.search(source.read_text()):
        return set()
    nodes = tuple(ast.walk(parse_source(source)))
    own = own_names(nodes)
    imported = {
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if is_private(alias.name)
    }
    used = {
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own
        if ast.unparse(node.value) not in ("self", "cls", "super()")
    }
    return (imported | used) - {"os._exit", "sys._getframe"}


def test_private_names_stay_in_their_modules() -> None:
    found = {
        str(source.relative_to(SRC)): names
        for source in sorted(SRC.rglob("*.py"))
        if not source.stem.endswith("_pb2")
        if (names := strangers_names(source))
    }
    assert found == PRIVATE_NAMES_OF_OTHERS


def private_names_of(node: ast.ClassDef) -> set[str]:
    """Return the private names that a class defines, or uses of itself or of its bases."""

    def is_own(value: ast.expr) -> bool:
        if isinstance(value, ast.Call):
            value = value.func
        return isinstance(value, ast.Name) and value.id in ("self", "cls", "super")

    names = {
        each.name if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) else each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(each, ast.Attribute) and is_own(each.value))
    }
    return set(filter(is_private, names))


def private_names_of_bases() -> list[str]:
    """Return each private name that a class uses of a base in another module."""
    bases_of: dict[tuple[str, str], list[str]] = {}
    names_of: dict[tuple[str, str], set[str]] = {}
    imported: dict[tuple[str, str], tuple[str, str]] = {}
    for source in SRC.rglob("*.py"):
        if source.stem.endswith("_pb2"):
            continue
        module = ".".join(source.relative_to(SRC).with_suffix("").parts)
        for node in walk_statements(parse_source(source)):
            if isinstance(node, ast.ClassDef):
                plain = (
                    each.value if isinstance(each, ast.Subscript) else each for each in node.bases
                )
                bases_of[module, node.name] = [ast.unparse(each) for each in plain]
                names_of[module, node.name] = private_names_of(node)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    imported[module, alias.asname or alias.name] = (node.module, alias.name)

    def find_bases(module: str, name: str) -> Iterator[tuple[str, str]]:
        for base in bases_of[module, name]:
            key = (module, base) if (module, base) in bases_of else imported.get((module, base))
            if key in bases_of:
                yield key
                yield from find_bases(*key)

    return sorted(
        f"{module}.{name}: {private}"
        for module, name in bases_of
        for private in {
            private
            for base in set(find_bases(module, name))
            if base[0] != module
            for private in names_of[base] & names_of[module, name]
        }
    )


def test_subclasses_use_ever_fewer_private_names_of_bases_elsewhere() -> None:
    found = private_names_of_bases()
    assert len(found) <= PRIVATE_NAMES_OF_BASES_MAX, "\n".join(found)


def test_extensions_use_public_names_of_python_modules() -> None:
    def declared_in(source: Path) -> set[str]:
        lines = re.findall(r"^ *(?:cdef|cpdef|def) .*", source.read_text(), re.MULTILINE)
        return set(re.findall(r"\b_[a-z]\w*", "\n".join(lines)))

    shared = set().union(*map(declared_in, (SRC / "_fast").rglob("*.pxd")))
    found = {
        f"{source.relative_to(SRC)}: {used}"
        for source in (SRC / "_fast").rglob("*.pyx")
        for used, name in re.findall(r"(?<!\bself)(\._([a-z]\w*))", source.read_text())
        if f"_{name}" not in shared | declared_in(source)
    }
    assert found == set()


def test_tests_use_ever_fewer_private_names_of_the_product() -> None:
    found = [
        f"{source.relative_to(ROOT)}: {name}"
        for folder in ("tests", "compat-tests", "benchmarks")
        for source in sorted((ROOT / folder).rglob("*.py"))
        for name in sorted(strangers_names(source))
    ]
    assert len(found) <= PRIVATE_NAMES_IN_TESTS_MAX, "\n".join(found)


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    modules = {
        ".".join(source.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): source
        for source in SRC.rglob("*.py")
    }
    imports: dict[str, set[str]] = {}
    for module, source in modules.items():
        found = set()
        for name in imported_modules(source):
            known = name if name in modules else name.rpartition(".")[0]
            if known in modules and known != module:
                found.add(known)
        imports[module] = found
    tuple(TopologicalSorter(imports).static_order())

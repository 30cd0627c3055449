"""Translates the original's names for settings, for servers that replace its images.

Owns: ``translate``. A setting that segstore also has is declared with the original's
names; ``original_names.toml``, beside this module, has all other names.

The original's images read variables of the environment, and properties in ``JAVA_OPTS``
(``-Dname=value``); its start scripts make properties of the variables. Both become options and
settings of segstore if the variable ``SEGSTORE_ORIGINAL_NAMES`` is set, see ``original_defaults``.

Names that have no effect here are returned, so that the caller can report them once. The original's
images silently choose one of two names that contradict each other; this module refuses them.

Invariants:
1. ``UsageError`` is raised when two names give one setting different values, and for places of data
   that are not supported. Held by ``test_what_cannot_be_meant_is_refused``.
2. Names without an effect on this kind of server are returned, and are no error. Held by
   ``test_names_of_another_kind_of_server_are_no_mistake``.
3. When a name switches TLS or authorization on, the server has it, or the start ends with a
   sentence that names the setting to use. Held by
   ``test_protection_that_is_switched_on_is_there_or_asked_for``.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from pravega_admin.serving.declarations import TABLES, Declaration, declarations_of
from pravega_admin.supervisor.child_protocol import CONTROLLER, SEGMENT_STORE
from segstore_client.errors import UsageError

STANDALONE: Final = "standalone"
EVERY_ADDRESS: Final = "0.0.0.0"
JAVA_OPTIONS: Final = "JAVA_OPTS"
TRUE: Final = frozenset({"true", "yes", "1"})
FALSE: Final = frozenset({"false", "no", "0"})


def _text(value: str) -> str:
    return value


def _number(value: str) -> int:
    if not (value.isascii() and value.removeprefix("-").isdecimal()):
        raise ValueError("is not a whole number")
    return int(value)


def _seconds_of_milliseconds(value: str) -> float:
    return _number(value) / 1000


def _seconds(value: str) -> float:
    return float(_number(value))


def _seconds_of_minutes(value: str) -> float:
    return _number(value) * 60.0


def _flag(value: str) -> bool:
    if value.lower() not in TRUE | FALSE:
        raise ValueError("is neither true nor false")
    return value.lower() in TRUE


def _tls_versions(value: str) -> tuple[str, ...]:
    versions = tuple(each.strip() for each in value.split(","))
    if not set(versions) <= {"TLSv1.2", "TLSv1.3"}:
        raise ValueError("is no list of TLSv1.2 and TLSv1.3")
    return versions


def _must_be_bookkeeper(value: str) -> None:
    if value.upper() != "BOOKKEEPER":
        raise ValueError("cannot be met: the logs of a cluster are on bookies")


def _storage_kind(value: str) -> str:
    if value.upper() not in ("FILESYSTEM", "HDFS", "S3", "EXTENDEDS3"):
        raise ValueError("is no FILESYSTEM, HDFS, S3 or EXTENDEDS3: name the place with --tier2")
    return value.upper()


READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "text": _text,
    "number": _number,
    "seconds": _seconds,
    "seconds_of_milliseconds": _seconds_of_milliseconds,
    "seconds_of_minutes": _seconds_of_minutes,
    "flag": _flag,
    "tls_versions": _tls_versions,
    "bookkeeper": _must_be_bookkeeper,
    "storage_kind": _storage_kind,
}
"""Functions that read the text of a value, or raise ``ValueError``."""

_NEEDED: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    SEGMENT_STORE: {
        "authorization": (
            "segment_store.token_keys",
            "the keys of tokens are in a file, which segstore token create makes",
        ),
        "zookeeper_tls": (
            "segment_store.cluster.zookeeper_tls",
            "key stores of Java are not read, PEM files are",
        ),
        "bookie_tls": (
            "segment_store.cluster.bookie_tls",
            "key stores of Java are not read, PEM files are",
        ),
        "controller_tls": (
            "segment_store.controller_ca",
            "a PEM file has the authority that controllers have their certificates of",
        ),
    },
    CONTROLLER: {
        "authorization": (
            "controller.token_keys",
            "the keys of tokens are in a file, which segstore token create makes",
        ),
        "zookeeper_tls": (
            "controller.zookeeper_tls",
            "key stores of Java are not read, PEM files are",
        ),
    },
    STANDALONE: {
        "tls": ("secure", "certificates, keys and users are in the data directory"),
        "authorization": ("secure", "certificates, keys and users are in the data directory"),
    },
}
"""By server and by part that is switched on: the option, or the setting with its path, that has to
be given, and why."""


@dataclass(frozen=True, slots=True)
class Name:
    """A setting of the original's, by all its names."""

    target: str
    """See the file of names."""
    sources: Sequence[str]
    """All its names, the present one first."""
    read: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class NameTables:
    """All names of the original that are known."""

    names: Mapping[str, Sequence[Name]]
    """The names that have a meaning, by the server that reads them."""
    name_spaces: frozenset[str]
    variables_without_effect: frozenset[str]


@cache
def read_names() -> NameTables:
    """Return the names of settings, and those of the file beside this module."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    names = {
        server: [
            Name(
                row.get("target", ""),
                (current, *row.get("others", ())),
                READERS[row.get("value", "text")],
            )
            for current, row in tables[server].items()
        ]
        for server in (SEGMENT_STORE, CONTROLLER, STANDALONE)
    }
    for server, table in zip((SEGMENT_STORE, CONTROLLER), TABLES, strict=True):
        names[server] += [
            Name(
                each.parameter or each.path,
                each.original.split(),
                READERS[each.value or kind_of(each)],
            )
            for each in declarations_of(table)
            if each.original
        ]
    return NameTables(
        names, frozenset(tables["name_spaces"]), frozenset(tables["variables_without_effect"])
    )


def kind_of(declaration: Declaration) -> str:
    """Return how the text of a setting's value is read, by its type and its name."""
    if declaration.kind is float:
        return "seconds"
    return "number" if declaration.kind in (int, int | None) else "text"


@dataclass(slots=True)
class Translation:
    """The settings of the original's names, in this store's names."""

    options: dict[str, Any] = field(default_factory=dict)
    """Values of options, by the options' names."""
    sources: dict[str, str] = field(default_factory=dict)
    """The name from which each option or setting comes; none for the original's defaults."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Tables as those of a settings file."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables to set."""
    needed: dict[str, str] = field(default_factory=dict)
    """Options, and settings by their paths, that must be given, with the sentence if they lack."""
    without_effect: list[str] = field(default_factory=list)
    """Names of the original that have no effect here."""


@dataclass(slots=True)
class _Value:
    value: Any
    source: str = ""
    """The name that has the value; empty for a default of the original's."""


def translate(server: str, environment: Mapping[str, str], own_address: str | None) -> Translation:
    """Return the settings of one kind of server that the original's names in an environment have.

    ``own_address`` is published if no name has another address, as the original does. Raises
    ``UsageError`` for values that contradict each other, cannot be read or cannot be met.
    """
    given = _collect(environment)
    found: dict[str, _Value] = {}
    for name in read_names().names[server]:
        for source in name.sources:
            for text in given.get(source, ()):
                _enter(found, name, source, text)
    translation = Translation(without_effect=_names_without_effect(server, given))
    parts = {key[1:]: found.pop(key) for key in list(found) if key.startswith("!")}
    if server == SEGMENT_STORE:
        _assemble_segment_store(found, parts, own_address)
        _assemble_storage(translation, found, parts)
        _assemble_tls(found, parts, "segment_store")
        if _is_on(parts, "controller_tls") and "controller_ca" in parts:
            found["segment_store.controller_ca"] = parts["controller_ca"]
    elif server == CONTROLLER:
        _assemble_controller(found, parts, own_address)
        _assemble_tls(found, parts, "controller")
        _assemble_tls_to_stores(found, parts)
        _assemble_accounts(found, parts)
    for part, (place, reason) in _NEEDED[server].items():
        if _is_on(parts, part) and place not in found:
            how = f"name it in {place} of a settings file" if "." in place else f"say --{place}"
            translation.needed[place] = f"{parts[part].source}=true: {reason}, so {how}"
    found.setdefault("host", _Value(EVERY_ADDRESS))
    for target, entry in found.items():
        if entry.source:
            translation.sources[target] = entry.source
        *tables, key = target.split(".")
        if not tables:
            translation.options[target] = entry.value
            continue
        table = translation.settings
        for each in tables:
            table = table.setdefault(each, {})
        table[key] = entry.value
    return translation


def merge_settings(
    file: Mapping[str, Any], translated: Mapping[str, Any], path: str = ""
) -> dict[str, Any]:
    """Return a settings file's tables with translated ones; ``UsageError`` if they contradict."""
    merged = dict(file)
    for key, value in translated.items():
        where = f"{path}{key}"
        if key not in merged:
            merged[key] = value
        elif isinstance(value, dict) and isinstance(merged[key], dict):
            merged[key] = merge_settings(merged[key], value, f"{where}.")
        elif merged[key] != value:
            raise UsageError(
                f"the settings file says {where} = {merged[key]!r}, and a name of the original's"
                f" {value!r}"
            )
    return merged


def check_needed(tables: Mapping[str, Any], needed: Mapping[str, str]) -> None:
    """Raise ``UsageError`` if a settings file's tables lack a setting that names ask for."""
    for path, sentence in needed.items():
        found: Any = tables
        *sections, key = path.split(".")
        for each in sections:
            found = found.get(each, {})
        if sections and key not in found:
            raise UsageError(sentence)


def _collect(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the values of variables and of properties, by name, without empty ones."""
    given = {name: [value.strip()] for name, value in environment.items() if value.strip()}
    try:
        words = shlex.split(environment.get(JAVA_OPTIONS, ""))
    except ValueError as error:
        raise UsageError(f"{JAVA_OPTIONS} cannot be read: {error}") from error
    for word in words:
        name, _, value = word.removeprefix("-D").partition("=")
        if word.startswith("-D") and value.strip():
            given.setdefault(name, []).append(value.strip())
    return given


def _enter(found: dict[str, _Value], name: Name, source: str, text: str) -> None:
    """Add the value of one name; ``UsageError`` if another name has another value."""
    try:
        value = name.read(text)
    except ValueError as error:
        raise UsageError(f"{source}={text} {error}") from error
    if not name.target:
        return
    earlier = found.setdefault(name.target, _Value(value, source))
    if earlier.value != value:
        raise UsageError(f"{earlier.source} says {earlier.value!r}, and {source} {value!r}")


def _names_without_effect(server: str, given: Mapping[str, list[str]]) -> list[str]:
    """Return the given names of the original that no server of this kind reads.

    Names for another kind are no mistake: one environment may be for both.
    """
    tables = read_names()
    known = {source for name in tables.names[server] for source in name.sources}
    of_others = {
        source for each in tables.names.values() for name in each for source in name.sources
    }
    return sorted(
        name
        for name in given
        if name not in known
        and (
            name in tables.variables_without_effect
            or (
                "." in name
                and name.partition(".")[0] in tables.name_spaces
                and name not in of_others
            )
        )
    )


def _assemble_segment_store(
    found: dict[str, _Value], parts: Mapping[str, _Value], own_address: str | None
) -> None:
    """Assemble the options of a segment store that are several settings in the original."""
    if "zookeeper" in found:
        host = parts.get("published_host", _Value(own_address))
        port = parts.get("published_port") or found.get("port", _Value(12345))
        if host.value is not None:
            found["publish"] = _Value(f"{host.value}:{port.value}", host.source or port.source)
    elif (uri := parts.get("controller_uri")) is not None:
        # In a cluster controllers are found in ZooKeeper.
        address = urlsplit(uri.value).netloc or uri.value
        found["controller"] = _Value(address.partition(",")[0], uri.source)
    sizes = [parts.get(each) for each in ("ensemble", "write_quorum", "ack_quorum")]
    if (first := next(filter(None, sizes), None)) is not None:
        numbers = [
            str(usual if size is None else size.value)
            for size, usual in zip(sizes, (3, 3, 2), strict=True)
        ]
        found["replicas"] = _Value("/".join(numbers), first.source)


def _assemble_storage(
    translation: Translation, found: dict[str, _Value], parts: Mapping[str, _Value]
) -> None:
    """Assemble the options for the place of tier 2."""
    kind = parts.get("storage")
    if kind is None:
        return
    if kind.value == "FILESYSTEM":
        usual = _Value("/fs/", kind.source)
        found["tier2"] = parts.get("directory", usual)
        return
    if kind.value == "HDFS":
        # HDFS_URL names the NameNode's port for programs in Java.
        translation.needed["tier2"] = (
            f"{kind.source}=HDFS: HDFS is reached by WebHDFS here, so name the place with"
            " --tier2 webhdfs://NAMENODE:9870/PATH"
        )
        return
    bucket = parts.get("bucket")
    if bucket is None:
        raise UsageError(f"{kind.source}={kind.value} needs the name of a bucket")
    prefix = parts["prefix"].value.strip("/") if "prefix" in parts else ""
    found["tier2"] = _Value(f"s3://{bucket.value}/{prefix}", bucket.source)
    keys = {
        "AWS_ACCESS_KEY_ID": parts.get("access_key"),
        "AWS_SECRET_ACCESS_KEY": parts.get("secret_key"),
    }
    uri = parts.get("s3_uri")
    overrides = "s3_override" in parts and parts["s3_override"].value
    if uri is not None and (kind.value == "EXTENDEDS3" or overrides):
        # The original's script joins the two with %26, which is an encoded ampersand.
        split = urlsplit(uri.value.replace("%26", "&"))
        found["s3_endpoint"] = _Value(f"{split.scheme}://{split.netloc}", uri.source)
        query = parse_qs(split.query)
        for variable, key in (
            ("AWS_ACCESS_KEY_ID", "identity"),
            ("AWS_SECRET_ACCESS_KEY", "secretKey"),
        ):
            if keys[variable] is None and key in query:
                keys[variable] = _Value(query[key][0], uri.source)
    if "s3_region" in parts:
        found["s3_region"] = parts["s3_region"]
    translation.environment.update(
        {variable: entry.value for variable, entry in keys.items() if entry is not None}
    )


def _assemble_tls(found: dict[str, _Value], parts: Mapping[str, _Value], table: str) -> None:
    """Assemble the settings for the certificate of a server, if TLS is switched on."""
    if not _is_on(parts, "tls"):
        return
    for part in ("tls_certificate", "tls_key"):
        if part not in parts:
            raise UsageError(
                f"{parts['tls'].source}=true needs the paths of a certificate and of its key, in"
                " PEM"
            )
    for part in ("tls_certificate", "tls_key", "tls_versions"):
        if part in parts:
            found[f"{table}.tls.{part.removeprefix('tls_')}"] = parts[part]


def _assemble_tls_to_stores(found: dict[str, _Value], parts: Mapping[str, _Value]) -> None:
    """Assemble how a controller reaches segment stores: with the TLS settings by which clients
    reach the controller, unless a name says otherwise."""
    switch = parts.get("store_tls", parts.get("tls"))
    if switch is None or not switch.value:
        return
    found["controller.store_tls"] = switch
    if "store_ca" in parts:
        found["controller.store_ca"] = parts["store_ca"]


def _assemble_accounts(found: dict[str, _Value], parts: Mapping[str, _Value]) -> None:
    """Assemble the file of users, if authorization is switched on."""
    if not _is_on(parts, "authorization"):
        return
    if "accounts" not in parts:
        raise UsageError(f"{parts['authorization'].source}=true needs the path of an accounts file")
    found["controller.accounts"] = parts["accounts"]


def _is_on(parts: Mapping[str, _Value], part: str) -> bool:
    return part in parts and bool(parts[part].value)


def _assemble_controller(
    found: dict[str, _Value], parts: Mapping[str, _Value], own_address: str | None
) -> None:
    """Assemble the options for the address of a controller."""
    port = found["port"].value if "port" in found else 9090
    published = parts.get("published_port", _Value(port))
    if published.value != port:
        raise UsageError(
            f"{published.source} says {published.value}, but a controller is published with the"
            f" port that it listens on, which is {port}"
        )
    if "zookeeper" in found and own_address is not None:
        found.setdefault("published_address", _Value(own_address))

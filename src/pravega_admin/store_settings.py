"""The settings of a standalone store, from the options of the command and the settings file.

Owns: the settings file, and the conversion of options to settings.

A settings file is TOML with the tables ``segment_store`` and ``controller``, whose keys are the
fields of the servers' configurations; those that have an option are refused there.

Invariants:
1. This module works without the command line's parser, whose import takes long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pravega_admin.errors import ConfigurationError
from pravega_admin.quick_options import ALL_CORES
from pravega_blocking.errors import UsageError

SETTINGS_WITH_OPTIONS = {
    "segment_store": {"host", "port", "data_dir", "container_count", "tier2", "s3", "controller"},
    "controller": {
        "host",
        "port",
        "segment_stores",
        "container_stores",
        "container_count",
        "place",
        "published_address",
        "zookeeper",
        "cluster",
    },
}
DATA_DIR = Path("data")
PATHS = frozenset({"data_dir", "log_file", "config"})


def start_standalone(options: Mapping[str, Any]) -> None:
    """Run a whole store. Does not return, see ``run_standalone``.

    ``options`` are the given ones, by name; None stands for a missing one. Raises ``AdminError``.
    """
    began = process_began()
    from pravega_admin.standalone import CONTAINER_COUNT, StandaloneSettings, run_standalone

    given: dict[str, Any] = {
        name: Path(value) if name in PATHS else value
        for name, value in options.items()
        if value is not None
    }
    file = read_settings(given.pop("config", None))
    if "cluster" in file.get("segment_store", {}):
        raise ConfigurationError(
            "a standalone store is no member of a cluster: see segstore server"
        )
    tier_2 = tier_2_settings(
        given.pop("tier2", None),
        endpoint=given.pop("s3_endpoint", None),
        region=given.pop("s3_region", None),
    )
    if given.get("stores") == ALL_CORES:
        container_count = given.get("container_count", CONTAINER_COUNT)
        given["stores"] = min(stores_for(len(os.sched_getaffinity(0))), container_count)
    settings = StandaloneSettings(
        data_dir=given.pop("data_dir", DATA_DIR),
        segment_store={**tier_2, **file.get("segment_store", {})},
        controller=file.get("controller", {}),
        **given,
    )
    run_standalone(settings, began=began)


def read_stores(text: str) -> int | str:
    """Return the value of ``--stores``; raises ``UsageError``."""
    if text == ALL_CORES:
        return text
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise UsageError(f"--stores {text!r} is neither a number from 1 on nor {ALL_CORES}")
    return int(text)


def stores_for(core_count: int) -> int:
    """Return the number of segment stores for so many cores.

    A store's event loop fills one core; its journal, its kernel and its clients need another.
    """
    return max(1, core_count // 2)


def process_began() -> float:
    """Return when this process was started, by the monotonic clock."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
    return time.monotonic() - age


def read_settings(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the tables of a settings file; ``ConfigurationError`` if it has anything else."""
    if path is None:
        return {}
    import tomllib

    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    for name, table in tables.items():
        if name not in SETTINGS_WITH_OPTIONS or not isinstance(table, dict):
            known = " and ".join(SETTINGS_WITH_OPTIONS)
            raise ConfigurationError(f"{path} has {name!r}; only tables {known} are known")
        if taken := SETTINGS_WITH_OPTIONS[name] & table.keys():
            raise ConfigurationError(f"{path} sets {min(taken)}, which is an option of the command")
    return tables


def tier_2_settings(
    location: str | None, *, endpoint: str | None, region: str | None, is_shared: bool = False
) -> dict[str, Any]:
    """Return the settings for the place of a segment store's tier 2.

    A directory is allowed if it ``is_shared`` by the members of a cluster.
    """
    if is_shared and location is not None and "://" not in location:
        return {"storage_dir": location}
    if location is None:
        if endpoint is not None or region is not None:
            raise UsageError("--s3-endpoint and --s3-region need --tier2 s3://BUCKET/PREFIX")
        return {}
    _check_location(location)
    if not location.startswith("s3://"):
        if endpoint is not None or region is not None:
            raise UsageError("--s3-endpoint and --s3-region need --tier2 s3://BUCKET/PREFIX")
        return {"tier2": location}
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise UsageError(f"--s3-endpoint {endpoint!r} is not an http:// or https:// URL")
    return {"tier2": location, "s3": {"endpoint_url": endpoint, "region": region}}


def member_settings(
    file: Mapping[str, Any], *, zookeeper: str | None, replicas: str | None, **given: Any
) -> dict[str, Any] | None:
    """Return the settings of a member of a cluster, None for a store on its own.

    They come from options and from the table ``segment_store.cluster`` of the settings file.
    """
    options = {name: value for name, value in given.items() if value is not None}
    if zookeeper is not None:
        options["zookeeper"] = zookeeper
    if replicas is not None:
        parts = replicas.split("/")
        if len(parts) != 3 or not all(part.isdecimal() for part in parts):
            raise UsageError(f"--replicas {replicas!r} is not three numbers, as 3/3/2")
        options["replicas"] = [int(part) for part in parts]
    if taken := options.keys() & file.keys():
        raise ConfigurationError(f"the settings file and an option set {min(taken)} of the cluster")
    settings = {**file, **options}
    if settings and "zookeeper" not in settings:
        raise UsageError("a member of a cluster needs --zookeeper HOST:PORT")
    return settings or None


def _check_location(location: str) -> None:
    """Raise ``UsageError`` unless tier 2 may be there."""
    if location.startswith("s3://"):
        # The registry of vendors takes much longer to import, and the start waits for it.
        from segstore.tiers.s3.location import S3Location, S3LocationError

        try:
            S3Location.parse(location)
        except S3LocationError as error:
            raise UsageError(f"--tier2 {error}") from error
        return
    from segstore.errors import StorageConfigurationError
    from segstore.process.tier_two_vendors import vendor_of

    try:
        vendor_of(location).parse(location)
    except StorageConfigurationError as error:
        raise UsageError(str(error)) from error

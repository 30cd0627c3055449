"""The settings of a standalone store, from the options of the command and the settings file.

Owns: the conversion of options to settings.

This module works without the command line's parser, whose import takes long.

Invariants:
1. An option that is not given has the same value as when the parser supplies its default. Held by
   ``test_the_settings_have_the_defaults_of_the_options``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pravega_admin.errors import ConfigurationError
from pravega_admin.serving.quick_options import ALL_CORES
from pravega_admin.serving.settings_file import read_settings
from segstore_client.errors import UsageError

DATA_DIR = Path("data")
PATHS = frozenset({"data_dir", "log_file", "config"})


def start_standalone(options: Mapping[str, Any]) -> None:
    """Run a whole store. Does not return, see ``run_standalone``.

    ``options`` are the given ones, by name; None stands for a missing one. Raises ``AdminError``.
    """
    began = process_began()
    from pravega_admin.serving.standalone import (
        CONTAINER_COUNT,
        StandaloneSettings,
        check_settings,
        run_standalone,
    )

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
        segment_store=join_tables(tier_2, file.get("segment_store", {})),
        controller=file.get("controller", {}),
        **given,
    )
    if file:
        check_settings(settings)
    run_standalone(settings, began=began)


def read_stores(text: str) -> int | str:
    """Return the value of ``--stores``; raises ``UsageError``."""
    if text == ALL_CORES:
        return text
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise UsageError(f"--stores {text!r} is neither a number from 1 on nor {ALL_CORES}")
    return int(text)


def stores_for(core_count: int) -> int:
    """Return the number of segment stores for this many cores.

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


def join_tables(options: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of options with those of a settings file. Both tables may have a part of
    the same section, such as that of S3."""
    joined = {**options, **file}
    for name in options.keys() & file.keys():
        if isinstance(options[name], Mapping) and isinstance(file[name], Mapping):
            joined[name] = {**options[name], **file[name]}
    return joined


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
    """Raise ``UsageError`` if tier 2 must not be at this place."""
    from segstore.errors import StorageConfigurationError
    from segstore.process.tier_two_vendors import vendor_of

    try:
        vendor_of(location).parse(location)
    except StorageConfigurationError as error:
        raise UsageError(str(error)) from error

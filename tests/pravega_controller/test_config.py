from pathlib import Path
from typing import Any

import pytest

from pravega_controller.config import ConfigurationError, ControllerConfig


@pytest.mark.parametrize(
    "settings",
    [
        {"container_stores": (0, 0, 0)},
        {"container_stores": (0, 0, 0, 1)},
        {"container_stores": (0, 0, 0, -1)},
        {"segment_stores": ()},
        {"segment_stores": (("", 1),)},
        {"segment_stores": (("h", 65536),)},
        {"container_count": 0},
        {"port": -1},
        {"host": ""},
        {"published_address": ""},
        {"request_poll_seconds": -1.0},
        {"retention_period_seconds": float("nan")},
        {"watermark_period_seconds": -0.1},
        {"history_period_seconds": -1.0},
        {"history_seconds_min": float("inf")},
        {"idle_sweep_seconds": 0.0},
        {"zookeeper": ""},
        {"zookeeper": "h:1", "cluster": "a/b"},
        {"zookeeper": "h:1", "host": "0.0.0.0"},
        {"session_seconds": 0.0},
        {"rebalance_seconds_min": -1.0},
    ],
)
def test_what_cannot_be_served_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ControllerConfig(**settings)


def test_an_audit_log_needs_users() -> None:
    log = Path("audit.log")
    with pytest.raises(ConfigurationError, match="name their file in accounts"):
        ControllerConfig(audit_log=log)
    assert ControllerConfig(audit_log=log, accounts=Path("passwd")).audit_log == log


def test_the_defaults_are_the_published_ports() -> None:
    config = ControllerConfig()
    assert (config.port, config.segment_stores) == (9090, (("127.0.0.1", 12345),))

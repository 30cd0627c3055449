"""The image and the compose file: what they say is checked against the real command line."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
import yaml
from typer.testing import CliRunner

from pravega_admin.commands import servers
from pravega_admin.serving.serve import decode_path
from pravega_admin.serving.standalone import check_exposure
from pravega_admin.supervisor.child_protocol import SEGMENT_STORE
from pravega_admin.verbs import app
from pravega_controller.config import ControllerConfig
from segstore.process.config import SegmentStoreConfig

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
COMPOSE = DEPLOY / "compose.yaml"
SECURE = DEPLOY / "compose.secure.yaml"
SECURITY = "/etc/segstore/security"
RUN_JAVA = DEPLOY / "image" / "run-java"
STORES = ("store-0", "store-1", "store-2")
CONTROLLERS = ("controller-0", "controller-1")
BOOKIES = ("bookie-0", "bookie-1", "bookie-2")


def expand(value: Any, variables: dict[str, str]) -> Any:
    """Put variables in, as compose does: ``${NAME:-default}``."""
    if isinstance(value, dict):
        return {key: expand(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [expand(each, variables) for each in value]
    if isinstance(value, str):
        return re.sub(
            r"\$\{(\w+):-([^}]*)\}", lambda match: variables.get(match[1], match[2]), value
        )
    return value


def merge(base: Any, over: Any) -> Any:
    """Put one file over another, as compose does."""
    if isinstance(base, dict) and isinstance(over, dict):
        merged = {key: merge(each, over[key]) for key, each in base.items() if key in over}
        # A command, and that of a check, is replaced as a whole.
        return {**base, **over, **merged}
    return over


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = expand(yaml.safe_load(COMPOSE.read_text()), {})["services"]
    return found


@pytest.fixture
def secure() -> dict[str, Any]:
    """The whole of both files, with TLS, users and tokens."""
    files = [yaml.safe_load(path.read_text()) for path in (COMPOSE, SECURE)]
    merged: dict[str, Any] = expand(merge(*files), {})
    return merged


def run_tool(*command: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which(command[0], path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if tool is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run([tool, *command[1:]], capture_output=True, text=True, check=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations of the servers that commands would have started."""
    found: list[Any] = []

    def serve(kind: str, settings: dict[str, Any], *, allow_insecure: bool, **_: Any) -> None:
        assert allow_insecure
        config_type: Any = SegmentStoreConfig if kind == SEGMENT_STORE else ControllerConfig
        found.append(msgspec.convert(settings, config_type, dec_hook=decode_path))

    monkeypatch.setattr(servers, "_serve", serve)
    return found


def start(service: dict[str, Any]) -> None:
    done = CliRunner().invoke(
        app, service["command"], env={"SEGSTORE_ORIGINAL_NAMES": "1", **service["environment"]}
    )
    assert done.exit_code == 0, done.output


@pytest.mark.processes
def test_the_dockerfile_has_no_faults_that_a_linter_knows() -> None:
    done = run_tool("hadolint", str(DOCKERFILE))
    assert done.returncode == 0, done.stdout


@pytest.mark.processes
@pytest.mark.parametrize("path", [COMPOSE, SECURE], ids=lambda path: path.name)
def test_the_compose_file_is_one_by_its_specification(path: Path) -> None:
    done = run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_image_copies_is_there_and_nobody_is_root() -> None:
    text = DOCKERFILE.read_text()
    for words in re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+)$", text, re.MULTILINE):
        for source in words.split()[:-1]:
            assert (ROOT / source).exists(), source
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    for name in ("segstore", "bookkeeper"):
        (stage,) = [each for each in stages if each.splitlines()[0].endswith(f" AS {name}")]
        assert re.search(r"^USER 10001:10001$", stage, re.MULTILINE)
    assert stages[-1].splitlines()[0].endswith(" AS segstore")


def test_stores_and_controllers_are_started_as_members_of_one_cluster(
    services: dict[str, Any], started: list[Any]
) -> None:
    for name in (*STORES, *CONTROLLERS):
        start(services[name])
    stores, controllers = started[:3], started[3:]
    assert {config.cluster.zookeeper for config in stores} == {"zookeeper:2181"}
    assert {config.zookeeper for config in controllers} == {"zookeeper:2181"}
    assert {config.container_count for config in started} == {8}
    assert {str(config.storage_dir) for config in stores} == {"/tier2"}
    for name, config in zip(STORES, stores, strict=True):
        assert config.cluster.published == (name, config.port)
    for name, config in zip(CONTROLLERS, controllers, strict=True):
        assert config.published_address == name
    for name, config in zip((*STORES, *CONTROLLERS), started, strict=True):
        assert config.host == "0.0.0.0"
        # The same outside, so that one published address is right for both.
        assert services[name]["ports"] == [f"{config.port}:{config.port}"]


def test_an_address_for_clients_elsewhere_is_published(started: list[Any]) -> None:
    variables = {"HOST_IP": "192.168.0.2", "TIER2": "s3://shared/prod"}
    services = expand(yaml.safe_load(COMPOSE.read_text()), variables)["services"]
    start(services["store-1"])
    start(services["controller-1"])
    store, controller = started
    assert store.cluster.published == ("192.168.0.2", 12346)
    assert store.tier2 == "s3://shared/prod"
    assert controller.published_address == "192.168.0.2"


def test_a_health_check_asks_the_server_of_its_container(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def ask(host: str, port: int, **_: Any) -> None:
        asked.append((host, port))

    for kind in ("segment_store", "controller"):
        monkeypatch.setattr(f"pravega_admin.inspection.server_checks.ask_{kind}", ask)
    for names, kind in ((STORES, "segment-store"), (CONTROLLERS, "controller")):
        for name in names:
            test = services[name]["healthcheck"]["test"]
            assert test[:4] == ["CMD", "segstore", "check", kind]
            assert CliRunner().invoke(app, test[2:]).exit_code == 0
            assert f"--port={asked[-1][1]}" in services[name]["command"]
            assert asked[-1][0] == "127.0.0.1"


def test_who_is_waited_for_can_be_waited_for(services: dict[str, Any]) -> None:
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[name]
            elif how["condition"] == "service_completed_successfully":
                assert services[name]["restart"] == "no"
    assert set(services["store-2"]["depends_on"]) == set(BOOKIES)


def test_a_store_has_the_time_to_hand_its_containers_over(
    services: dict[str, Any], started: list[Any]
) -> None:
    for name in STORES:
        start(services[name])
        config = started[-1]
        seconds = int(services[name]["stop_grace_period"].removesuffix("s"))
        assert seconds > config.cluster.hand_over_seconds_max + config.drain_seconds + 10


def test_variables_are_those_that_the_programs_read(services: dict[str, Any]) -> None:
    read_by_java = set(re.findall(r"\$\{([A-Z_]+):-", RUN_JAVA.read_text()))
    read_by_us = {"SEGSTORE_ALLOW_INSECURE", "SEGSTORE_TIER2"}
    read_by_boto = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"}
    for name, service in services.items():
        known = read_by_us | read_by_boto if name in (*STORES, *CONTROLLERS) else read_by_java
        assert service.get("environment", {}).keys() <= known, name


# ---- With TLS, users and tokens ------------------------------------------------------------------


def test_secure_servers_start_with_what_is_mounted_and_let_nobody_in_without(
    secure: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []

    def serve(kind: str, settings: dict[str, Any], *, allow_insecure: bool, **_: Any) -> None:
        assert not allow_insecure
        check_exposure(
            settings["host"], allow_insecure=allow_insecure, kind=kind, settings=settings
        )
        started.append(settings)

    monkeypatch.setattr(servers, "_serve", serve)
    for name in (*STORES, *CONTROLLERS):
        service = secure["services"][name]
        (config,) = service["configs"]
        assert service["environment"]["SEGSTORE_CONFIG"] == config["target"]
        file = DEPLOY / secure["configs"][config["source"]]["file"]
        environment = {**service["environment"], "SEGSTORE_CONFIG": str(file)}
        start({**service, "environment": environment})
        text = file.read_text().partition("[controller]")[2 if name in CONTROLLERS else 0]
        named = set(re.findall(rf'"({SECURITY}/[^"]+)"', text))
        mounted = {each["target"] for each in service["secrets"]}
        assert named == mounted
        assert service["environment"]["SEGSTORE_CA"] in mounted
        for each in service["secrets"]:
            assert each["target"] == f"{SECURITY}/{each['source']}"
            assert secure["secrets"][each["source"]]["file"].endswith(f"/{each['source']}")
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in secure["volumes"]
    assert started[-1]["audit_log"].startswith(service["volumes"][0].partition(":")[2])


def test_secure_health_checks_ask_by_tls(
    secure: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int, bool]] = []

    def ask(host: str, port: int, **others: Any) -> None:
        tls = others["access"].tls if "access" in others else others["tls"]
        asked.append((host, port, tls is not None))

    for kind in ("segment_store", "controller"):
        monkeypatch.setattr(f"pravega_admin.inspection.server_checks.ask_{kind}", ask)
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in (*STORES, *CONTROLLERS):
        service = secure["services"][name]
        words = service["healthcheck"]["test"][2:]
        environment = {"SEGSTORE_CA": str(tmp_path / "ca.pem")}
        assert CliRunner().invoke(app, words, env=environment).exit_code == 0
        (port,) = service["ports"]
        assert asked[-1] == ("localhost", int(port.partition(":")[0]), True)


def test_secure_containers_have_few_rights(secure: dict[str, Any]) -> None:
    for name, service in secure["services"].items():
        assert service["user"] == "10001:10001"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["tmpfs"] == ["/tmp"]
        is_ours = name in (*STORES, *CONTROLLERS)
        assert service["networks"] == (["default", "storage"] if is_ours else ["storage"])
    assert secure["networks"]["storage"]["internal"]


def test_the_certificate_of_the_guide_has_the_names_of_the_containers(
    secure: dict[str, Any],
) -> None:
    guide = (ROOT / "docs" / "guides" / "secure.md").read_text()
    part = guide.partition("### In containers")[2].partition("\n### ")[0]
    (command,) = re.findall(r"segstore certificate create .*", part)
    named = set(re.findall(r"--name (\S+)", command))
    assert named == {"localhost", *STORES, *CONTROLLERS}
    assert named < {"localhost", *secure["services"]}


# ---- ZooKeeper and bookies -----------------------------------------------------------------------


def run_java(tmp_path: Path, *arguments: str, **variables: str) -> tuple[list[str], str]:
    """Return the arguments that the JVM is started with, and the settings that were written."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir(exist_ok=True)
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    environment = {"PATH": f"{java.parent}:{os.environ['PATH']}", "DATA": str(tmp_path)}
    done = subprocess.run(
        [str(RUN_JAVA), *arguments],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines(), (tmp_path / "settings.properties").read_text()


@pytest.mark.processes
def test_a_bookie_syncs_and_registers_where_stores_look(tmp_path: Path) -> None:
    arguments, settings = run_java(
        tmp_path,
        "bookie",
        ADVERTISED_ADDRESS="bookie-7",
        ZOOKEEPER="a:2181;b:2181",
        CLUSTER="prod",
        SET_gcWaitTime="60000",
        JVM="-Xmx1g -Xms1g",
    )
    lines = settings.splitlines()
    assert "advertisedAddress=bookie-7" in lines
    root = "zk+hierarchical://a:2181;b:2181/pravega/prod/bookkeeper/ledgers"
    assert f"metadataServiceUri={root}" in lines
    assert "journalSyncData=true" in lines
    assert lines[-1] == "gcWaitTime=60000"
    assert arguments[:2] == ["-Xmx1g", "-Xms1g"]
    assert arguments[-3:] == [
        "org.apache.bookkeeper.server.Main",
        "--conf",
        str(tmp_path / "settings.properties"),
    ]


@pytest.mark.processes
def test_one_zookeeper_of_several_knows_its_number(tmp_path: Path) -> None:
    own = os.uname().nodename
    _, settings = run_java(tmp_path, "zookeeper", SERVERS=f"other.zk,{own}.zk,third.zk")
    assert f"server.2={own}.zk:2888:3888" in settings.splitlines()
    assert (tmp_path / "zookeeper" / "myid").read_text() == "2\n"
    _, settings = run_java(tmp_path, "zookeeper")
    assert "server." not in settings


@pytest.mark.proof
@pytest.mark.processes
def test_the_check_of_a_zookeeper_that_accepts_and_never_answers_fails_in_time() -> None:
    """It did wait for ever: a ZooKeeper that was just starting had accepted the connection."""
    timeout = yaml.safe_load(COMPOSE.read_text())["services"]["zookeeper"]["healthcheck"]["timeout"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = subprocess.run(
            [RUN_JAVA, "check", "zookeeper"],
            env={"PATH": os.environ["PATH"], "PORT": str(silent.getsockname()[1])},
            timeout=float(timeout.removesuffix("s")),
            check=False,
        )
    assert done.returncode == 1

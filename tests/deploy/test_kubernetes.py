"""The manifests for Kubernetes, put together by kubectl and checked against the real programs."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from functools import cache
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

pytestmark = pytest.mark.processes

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RUN_JAVA = DEPLOY / "image" / "run-java"
SECURED = ("secure-files", "secure-s3")
OVERLAYS = ("files", "s3", *SECURED)
SECURITY = "/etc/segstore/security"
NAME = "app.kubernetes.io/name"
FIELDS = {"metadata.name": "segment-stores-1", "metadata.namespace": "prod"}
FIELDS["status.podIP"] = "10.1.2.3"
GIB = 1024**3


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def put_together(overlay: str) -> str:
    """Return all objects of an overlay, as text."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not there")
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def manifest(overlay: str) -> str:
    return put_together(overlay)


@pytest.fixture
def objects(manifest: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = [each for each in yaml.safe_load_all(manifest) if each is not None]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


@pytest.fixture
def workloads(objects: dict[tuple[str, str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: each
        for (kind, name), each in objects.items()
        if kind in ("StatefulSet", "Deployment")
    }


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = workload["spec"]["template"]["spec"]
    return found


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod_of(workload)["containers"]
    return dict(found)


def arguments_of(container: dict[str, Any], objects: dict[Any, Any]) -> tuple[list[str], Any]:
    """Return the arguments and variables of a container, as Kubernetes would put them together."""
    variables: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            variables |= objects["ConfigMap", source["configMapRef"]["name"]]["data"]
    for each in container["env"]:
        reference = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        value = FIELDS[reference] if reference else each["value"]
        variables[each["name"]] = re.sub(r"\$\((\w+)\)", lambda m: variables[m[1]], value)
    words = [re.sub(r"\$\((\w+)\)", lambda m: variables[m[1]], word) for word in container["args"]]
    return words, variables


def settings_of(container: dict[str, Any], objects: dict[Any, Any], tmp_path: Path) -> Path | None:
    """Return the settings file of a container, written to this machine; None if it has none."""
    variables = {each["name"]: each.get("value") for each in container["env"]}
    if "SEGSTORE_CONFIG" not in variables:
        return None
    (settings,) = [
        each["data"]
        for (kind, name), each in objects.items()
        if kind == "ConfigMap" and name.startswith("segstore-settings")
    ]
    file = tmp_path / "segstore.toml"
    file.write_text(settings[Path(variables["SEGSTORE_CONFIG"]).name])
    return file


def mounted_files(workload: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the paths of secrets in a container, each with the secret's name and its key."""
    pod, (container,) = pod_of(workload), pod_of(workload)["containers"]
    (volume,) = [each for each in pod["volumes"] if "projected" in each]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
    return {
        f"{mount['mountPath']}/{item['path']}": (source["secret"]["name"], item["key"])
        for source in volume["projected"]["sources"]
        if "secret" in source
        for item in source["secret"]["items"]
    }


def is_selected(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a selector finds pods with these labels."""
    for each in selector.get("matchExpressions", ()):
        assert each["operator"] == "In"
        if labels.get(each["key"]) not in each["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def is_let_in(
    objects: dict[Any, Any], client: dict[str, str], server: dict[str, str], port: int
) -> bool:
    """Return whether pods with these labels reach others, by all policies for these."""
    policies = [
        each["spec"]
        for (kind, _), each in objects.items()
        if kind == "NetworkPolicy" and is_selected(each["spec"]["podSelector"], server)
    ]
    assert all(each["policyTypes"] == ["Ingress"] for each in policies)
    rules = [rule for each in policies for rule in each["ingress"]]
    return not policies or any(
        any(is_selected(peer["podSelector"], client) for peer in rule["from"])
        and ("ports" not in rule or port in [each["port"] for each in rule["ports"]])
        for rule in rules
    )


def bytes_of(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()  # type: ignore[union-attr]
    return int(number) * {"Mi": 1024**2, "Gi": GIB}[unit]


def test_the_objects_are_what_kubernetes_knows(manifest: str, tmp_path: Path) -> None:
    tool = Path(sys.executable).parent / "kubernetes-validate"
    if not tool.exists():
        pytest.skip("kubernetes-validate is not installed")
    file = tmp_path / "objects.yaml"
    file.write_text(manifest)
    done = subprocess.run([tool, "--strict", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_servers_are_started_as_members_of_one_cluster(
    overlay: str,
    objects: dict[Any, Any],
    workloads: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Any] = []

    def serve(kind: str, settings: dict[str, Any], *, allow_insecure: bool, **_: Any) -> None:
        assert allow_insecure is (overlay not in SECURED)
        check_exposure(
            settings["host"], allow_insecure=allow_insecure, kind=kind, settings=settings
        )
        config_type: Any = SegmentStoreConfig if kind == SEGMENT_STORE else ControllerConfig
        started.append(msgspec.convert(settings, config_type, dec_hook=decode_path))

    monkeypatch.setattr(servers, "_serve", serve)
    for name in ("segment-stores", "controllers"):
        container = container_of(workloads[name])
        words, variables = arguments_of(container, objects)
        if (file := settings_of(container, objects, tmp_path)) is not None:
            variables["SEGSTORE_CONFIG"] = str(file)
        done = CliRunner().invoke(app, words, env={"SEGSTORE_ORIGINAL_NAMES": "1", **variables})
        assert done.exit_code == 0, done.output
    store, controller = started
    assert store.container_count == controller.container_count
    assert store.cluster.zookeeper == controller.zookeeper
    own_name = "segment-stores-1.segment-stores.prod.svc.cluster.local"
    assert store.cluster.published == (own_name, store.port)
    service = "controllers.prod.svc.cluster.local"
    assert controller.published_address == (service if overlay in SECURED else "10.1.2.3")
    assert (store.storage_dir is None) == (store.tier2 is not None)
    for name, config in (("segment-stores", store), ("controllers", controller)):
        (port,) = container_of(workloads[name])["ports"]
        assert port["containerPort"] == config.port
        assert objects["Service", name]["spec"]["ports"][0]["port"] == config.port
    seconds = store.cluster.hand_over_seconds_max + store.drain_seconds
    pod = pod_of(workloads["segment-stores"])
    assert pod["terminationGracePeriodSeconds"] > seconds + 10
    assert workloads["segment-stores"]["spec"]["minReadySeconds"] > controller.rebalance_seconds_min
    limit = container_of(workloads["segment-stores"])["resources"]["limits"]["memory"]
    assert bytes_of(limit) > store.cache_bytes_max + 512 * 1024**2


def test_addresses_are_those_of_services_and_their_pods(
    objects: dict[Any, Any], workloads: dict[str, Any]
) -> None:
    for name in ("zookeeper", "bookies", "segment-stores"):
        service = objects["Service", name]["spec"]
        assert service["clusterIP"] == "None"
        assert service["publishNotReadyAddresses"]
        assert workloads[name]["spec"]["serviceName"] == name
    text = yaml.safe_dump_all(list(workloads.values()))
    numbers = {int(each) for each in re.findall(r"zookeeper-(\d+)\.zookeeper", text)}
    assert numbers == set(range(workloads["zookeeper"]["spec"]["replicas"]))


def test_selectors_find_the_pods_that_they_mean(
    objects: dict[Any, Any], workloads: dict[str, Any]
) -> None:
    for name, workload in workloads.items():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert labels[NAME] == name
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert objects["Service", name]["spec"]["selector"].items() <= labels.items()
        budget = objects["PodDisruptionBudget", name]["spec"]
        assert budget["selector"]["matchLabels"].items() <= labels.items()
        assert budget["maxUnavailable"] == 1 < workload["spec"]["replicas"]


NEEDED = {
    ("zookeeper", "zookeeper"): {2181, 2888, 3888},
    ("bookies", "zookeeper"): {2181},
    ("segment-stores", "zookeeper"): {2181},
    ("controllers", "zookeeper"): {2181},
    ("segment-stores", "bookies"): {3181},
    ("segment-stores", "segment-stores"): {12345},
    ("segment-stores", "controllers"): {9090},
    ("controllers", "segment-stores"): {12345},
    ("client", "segment-stores"): {12345},
    ("client", "controllers"): {9090},
}
"""The ports by which who needs whom."""


def test_pods_reach_what_they_need_and_clients_no_more(
    overlay: str, objects: dict[Any, Any], workloads: dict[str, Any]
) -> None:
    labels = {
        name: each["spec"]["template"]["metadata"]["labels"] for name, each in workloads.items()
    }
    clients = {**labels, "client": {"segstore-client": "yes"}, "stranger": {"app": "other"}}
    ports = {2181, 2888, 3888, 3181, 9090, 12345}
    for client, server in itertools.product(clients, labels):
        reached = {
            port for port in ports if is_let_in(objects, clients[client], labels[server], port)
        }
        needed = NEEDED.get((client, server), set())
        assert needed <= reached, f"{client} to {server}"
        if client == "stranger":
            assert not reached, server
        elif client == "client":
            assert reached <= {9090, 12345}
        if overlay in SECURED and server in ("zookeeper", "bookies"):
            # Bookies may copy from each other.
            assert reached - ({3181} if client == server else set()) == needed


def test_probes_ask_what_answers(
    overlay: str, workloads: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int, bool]] = []

    def ask(host: str, port: int, **others: Any) -> None:
        tls = others["access"].tls if "access" in others else others["tls"]
        asked.append((host, port, tls is not None))

    for kind in ("segment_store", "controller"):
        monkeypatch.setattr(f"pravega_admin.inspection.server_checks.ask_{kind}", ask)
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    is_secure = overlay in SECURED
    environment = {"SEGSTORE_CA": str(tmp_path / "ca.pem")} if is_secure else {}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        for name, workload in workloads.items():
            container = container_of(workload)
            probe = container[kind]
            ports = {each["name"]: each["containerPort"] for each in container["ports"]}
            if "grpc" in probe:
                assert not is_secure, "the probes of gRPC speak no TLS"
                assert (name, probe["grpc"]["port"]) == ("controllers", ports["grpc"])
            elif "tcpSocket" in probe:
                assert probe["tcpSocket"]["port"] in ports
            elif name == "zookeeper":
                assert probe["exec"]["command"] == ["run-java", "check", "zookeeper"]
            else:
                program, *words = probe["exec"]["command"]
                assert program == "segstore"
                assert words[1] == {"segment-stores": "segment-store"}.get(name, "controller")
                assert CliRunner().invoke(app, words, env=environment).exit_code == 0
                host = "localhost" if is_secure else "127.0.0.1"
                assert asked[-1] == (host, *ports.values(), is_secure)
                # Python and its libraries take some seconds to start on a busy machine.
                assert probe["timeoutSeconds"] >= 10


@pytest.mark.parametrize("overlay", SECURED)
def test_what_secure_servers_read_is_in_secrets_that_the_guide_makes(
    objects: dict[Any, Any], workloads: dict[str, Any], tmp_path: Path
) -> None:
    guide = (DEPLOY.parent / "docs" / "guides" / "secure.md").read_text()
    told = {
        (secret, key.partition("=")[0] if "=" in key else Path(key).name)
        for secret, words in re.findall(r"create secret generic (\S+) (.+)", guide)
        for key in re.findall(r"--from-file=(\S+)", words)
    }
    used = set()
    for name, table in (("segment-stores", "segment_store"), ("controllers", "controller")):
        container = container_of(workloads[name])
        file = settings_of(container, objects, tmp_path)
        assert file is not None
        (section,) = re.findall(rf"^\[{table}\]\n(.*?)(?:^\[|\Z)", file.read_text(), re.M | re.S)
        mounted = mounted_files(workloads[name])
        assert set(re.findall(rf'"({SECURITY}/[^"]+)"', section)) == mounted.keys()
        variables = {each["name"]: each.get("value") for each in container["env"]}
        assert variables["SEGSTORE_CA"] in mounted
        used |= set(mounted.values())
        for audit_log in re.findall(r'audit_log = "([^"]+)"', section):
            mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
            assert "readOnly" not in mounts[str(Path(audit_log).parent)]
        # Of the group alone: the keys of tokens are refused where others may read them.
        (volume,) = [each for each in pod_of(workloads[name])["volumes"] if "projected" in each]
        assert volume["projected"]["defaultMode"] == 0o440
    assert used == told


def test_the_certificate_of_the_guide_has_the_names_of_the_pods() -> None:
    guide = (DEPLOY.parent / "docs" / "guides" / "secure.md").read_text()
    part = guide.partition("### On Kubernetes")[2].partition("\n### ")[0]
    (command,) = re.findall(r"segstore certificate create .*", part)
    named = re.findall(r"--name '?([^\s']+)", command)
    for host in (
        "localhost",
        "controllers",
        "controllers.prod.svc.cluster.local",
        "segment-stores-2.segment-stores.prod.svc.cluster.local",
    ):
        _, _, parent = host.partition(".")
        assert host in named or f"*.{parent}" in named, host


def test_pods_have_few_rights_and_known_bounds(workloads: dict[str, Any]) -> None:
    for name, workload in workloads.items():
        pod = pod_of(workload)
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not pod["automountServiceAccountToken"], name
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
            mounted = {each["mountPath"] for each in container["volumeMounts"]}
            assert {"/data", "/tmp"} <= mounted


def test_variables_of_apaches_servers_are_read(workloads: dict[str, Any]) -> None:
    read = set(re.findall(r"\$\{([A-Z_]+):-", RUN_JAVA.read_text())) | {"POD_NAME"}
    for name in ("zookeeper", "bookies"):
        pod = pod_of(workloads[name])
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            given = {each["name"] for each in container["env"]}
            assert {each for each in given if not each.startswith("SET_")} <= read
            (what,) = container["args"]
            assert re.search(rf"^{what}\)$", RUN_JAVA.read_text(), re.MULTILINE)


def test_the_guides_name_the_overlays() -> None:
    guides = DEPLOY.parent / "docs" / "guides"
    for overlay in OVERLAYS:
        guide = (guides / ("secure.md" if overlay in SECURED else "cluster.md")).read_text()
        assert f"kubectl apply --kustomize deploy/kubernetes/{overlay}" in guide

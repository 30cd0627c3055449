"""The manifests for Kubernetes, put together by kubectl and checked against the real programs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from pravega_admin import serve_commands
from pravega_admin.serve import decode_path
from pravega_admin.supervisor.child_protocol import SEGMENT_STORE
from pravega_admin.verbs import app
from pravega_controller.config import ControllerConfig
from segstore.process.config import SegmentStoreConfig

pytestmark = pytest.mark.processes

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RUN_JAVA = DEPLOY / "image" / "run-java"
OVERLAYS = ("files", "s3")
NAME = "app.kubernetes.io/name"
FIELDS = {"metadata.name": "segment-stores-1", "metadata.namespace": "prod"}
FIELDS["status.podIP"] = "10.1.2.3"
GIB = 1024**3


@pytest.fixture(params=OVERLAYS)
def manifest(request: pytest.FixtureRequest) -> str:
    """All objects of an overlay, as text."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not there")
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / request.param)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    objects: dict[Any, Any], workloads: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def serve(kind: str, settings: dict[str, Any], *, allow_insecure: bool, **_: Any) -> None:
        assert allow_insecure
        config_type: Any = SegmentStoreConfig if kind == SEGMENT_STORE else ControllerConfig
        started.append(msgspec.convert(settings, config_type, dec_hook=decode_path))

    monkeypatch.setattr(serve_commands, "_serve", serve)
    for name in ("segment-stores", "controllers"):
        words, variables = arguments_of(container_of(workloads[name]), objects)
        done = CliRunner().invoke(app, words, env={"SEGSTORE_ORIGINAL_NAMES": "1", **variables})
        assert done.exit_code == 0, done.output
    store, controller = started
    assert store.container_count == controller.container_count
    assert store.cluster.zookeeper == controller.zookeeper
    own_name = "segment-stores-1.segment-stores.prod.svc.cluster.local"
    assert store.cluster.published == (own_name, store.port)
    assert controller.published_address == "10.1.2.3"
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
        access = objects["NetworkPolicy", "segstore"]["spec"]
        assert access["podSelector"]["matchLabels"].items() <= labels.items()
        peers = access["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
        assert peers.items() <= labels.items()


def test_probes_ask_what_answers(
    workloads: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def ask(host: str, port: int, *, seconds_max: float) -> None:
        asked.append((host, port))

    monkeypatch.setattr("pravega_admin.server_checks.ask_segment_store", ask)
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        for name, workload in workloads.items():
            container = container_of(workload)
            probe = container[kind]
            ports = {each["name"]: each["containerPort"] for each in container["ports"]}
            if "grpc" in probe:
                assert (name, probe["grpc"]["port"]) == ("controllers", ports["grpc"])
            elif "tcpSocket" in probe:
                assert probe["tcpSocket"]["port"] in ports
            elif name == "zookeeper":
                assert probe["exec"]["command"] == ["run-java", "check", "zookeeper"]
            else:
                program, *words = probe["exec"]["command"]
                assert program == "segstore"
                assert CliRunner().invoke(app, words).exit_code == 0
                assert asked[-1] == ("127.0.0.1", ports["segments"])


def test_pods_have_few_rights_and_known_bounds(workloads: dict[str, Any]) -> None:
    for name, workload in workloads.items():
        pod = pod_of(workload)
        assert pod["securityContext"]["runAsNonRoot"], name
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


def test_the_guide_names_the_overlays() -> None:
    guide = (DEPLOY.parent / "docs" / "guides" / "cluster.md").read_text()
    for overlay in OVERLAYS:
        assert f"kubectl apply --kustomize deploy/kubernetes/{overlay}" in guide

"""The generated messages say what controller.proto says, and the proto keeps its numbers."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from pravega_wire import controller_pb2

SRC = Path(controller_pb2.__file__).resolve().parent.parent
PROTO = "pravega_wire/controller.proto"


def generate(out: Path) -> None:
    """Run protoc the way the header of controller.proto says."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-I.",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--descriptor_set_out={out / 'descriptors.bin'}",
            PROTO,
        ],
        cwd=SRC,
        check=True,
    )


def without_compiler_version(source: str) -> str:
    """Drop the lines in which another release of the compiler would differ."""
    head, guard, rest = source.partition("_runtime_version.ValidateProtobufRuntimeVersion(")
    assert guard
    lines = [line for line in head.splitlines() if not line.startswith("# Protobuf Python Version")]
    return "\n".join(lines) + rest.partition(")")[2]


@pytest.mark.processes
def test_generating_again_gives_the_committed_modules(tmp_path: Path) -> None:
    generate(tmp_path)
    for name in ("controller_pb2.py", "controller_pb2.pyi"):
        fresh = (tmp_path / "pravega_wire" / name).read_text()
        committed = (SRC / "pravega_wire" / name).read_text()
        if name.endswith(".py"):
            fresh, committed = without_compiler_version(fresh), without_compiler_version(committed)
        assert fresh == committed, f"{name} is stale: generate it again from {PROTO}"


def test_the_interface_has_every_method_and_the_misspelt_alias() -> None:
    service = controller_pb2.DESCRIPTOR.services_by_name["ControllerService"]
    assert service.full_name == "io.pravega.controller.stream.api.grpc.v1.ControllerService"
    assert len(service.methods) == 47
    alias = service.methods_by_name["getSegmentsImmediatlyFollowing"]
    method = service.methods_by_name["getSegmentsImmediatelyFollowing"]
    assert (alias.input_type, alias.output_type) == (method.input_type, method.output_type)


def test_fields_that_are_easily_got_wrong_keep_their_numbers() -> None:
    def number(message: str, field: str) -> int:
        return controller_pb2.DESCRIPTOR.message_types_by_name[message].fields_by_name[field].number

    assert number("ListCompletedTxnResponse", "response") == 2
    assert number("SubscriberStreamCut", "streamCut") == 4
    assert number("StreamsInScopeWithTagRequest", "continuationToken") == 3
    assert number("StreamsInScopeResponse", "status") == 3
    assert number("ReaderGroupConfigResponse", "status") == 2
    assert number("CreateReaderGroupResponse", "status") == 1


def test_values_of_enums_are_dense_from_zero() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    controller_pb2.DESCRIPTOR.CopyToProto(file)
    enums = [enum for message in file.message_type for enum in message.enum_type]
    assert len(enums) > 25
    for enum in enums:
        assert [value.number for value in enum.value] == list(range(len(enum.value))), enum.name

"""Ports for servers of tests: nobody else gets them, neither a connection nor another process."""

import socket
import subprocess
import sys

import pytest

from segstore.testing.ports import HOST, KERNEL_RANGE, free_neighbours, free_ports


def test_ports_are_different_and_free() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    for port in ports:
        with socket.socket() as listener:
            listener.bind((HOST, port))


def test_neighbours_follow_one_another_and_are_free() -> None:
    first = free_neighbours(9)
    for port in range(first, first + 9):
        with socket.socket() as listener:
            listener.bind((HOST, port))


def test_no_connection_is_given_a_chosen_port() -> None:
    kernel_first, kernel_last = map(int, KERNEL_RANGE.read_text().split())
    assert all(not kernel_first <= port <= kernel_last for port in free_ports(50))


@pytest.mark.processes
def test_another_process_does_not_choose_the_same_port() -> None:
    ours = set(free_ports(50))
    others = set(range(min(ours), min(ours) + 100)) - ours
    source = (
        "from segstore.testing import ports\n"
        f"ports._candidates = lambda count: {[*ours, *others]}\n"
        "print(*ports.free_ports(1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) in others

"""Ports that are held are nobody else's, before a task has one, while it lives, and after its death."""

import errno
import socket

import pytest

from procsv.base.identity import TaskId
from procsv.watchdog.edge.resources.held_ports import HeldPorts

PS, WORKER, EVALUATOR = map(TaskId.parse, ("ps.0", "worker.0", "evaluator.0"))


def bind(address: str, *, shares: bool) -> None:
    host, _, port = address.partition(":")
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shares))
        server.bind((host, int(port)))
        server.listen()


def test_each_task_that_others_speak_to_has_a_port_that_only_it_can_have() -> None:
    ports = HeldPorts()
    try:
        addresses = ports.hold([PS, WORKER, EVALUATOR])
        assert set(addresses) == {PS, WORKER}
        assert len(set(addresses.values())) == 2
        for _ in range(2):  # its second start, too
            bind(addresses[PS], shares=True)
            with pytest.raises(OSError, match="in use") as refused:
                bind(addresses[PS], shares=False)
            assert refused.value.errno == errno.EADDRINUSE
    finally:
        ports.close()
    bind(addresses[PS], shares=False)

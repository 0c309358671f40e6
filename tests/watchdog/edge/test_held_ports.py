"""A held port stays reserved before a task has it, while it lives and after its death."""

from __future__ import annotations

import errno
import os
import socket
import typing

import psutil
import pytest

from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.watchdog.edge.resources.held_ports import HeldPorts

WITHOUT_A_PORT = r"port on 127.0.0.1 for worker.0: Address already in use; .*process .* with \d+ port"
PS, WORKER, EVALUATOR = map(TaskId.parse, ("ps.0", "worker.0", "evaluator.0"))


def bind(address: str, *, shares: bool) -> None:
    host, _, port = address.partition(":")
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shares))
        server.bind((host, int(port)))
        server.listen()


def test_a_machine_without_a_free_port_starts_nothing_and_releases_the_held_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Scarce(socket.socket):
        bound: typing.ClassVar[list[Scarce]] = []

        def bind(self, address: typing.Any) -> None:
            if self.bound:
                raise OSError(errno.EADDRINUSE, "Address already in use")
            super().bind(address)
            self.bound.append(self)

    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()  # so a holder is visible
        monkeypatch.setattr(socket, "socket", Scarce)
        with pytest.raises(UserError, match=WITHOUT_A_PORT) as refused:
            HeldPorts().hold([PS, WORKER])
    assert refused.value.exit_code == 73
    assert [held.fileno() for held in Scarce.bound] == [-1]


def test_each_task_that_others_connect_to_has_a_port_that_only_it_can_have() -> None:
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


def test_the_process_that_holds_a_port_named_by_the_cluster_is_named() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        told = {WORKER: f"10.0.0.1:{stranger.getsockname()[1]}"}
        name = psutil.Process().name()
        with pytest.raises(UserError) as refused:
            HeldPorts().hold_own(WORKER, "10.0.0.1", told)
        assert " worker.0, " in str(refused.value)
        assert f" process {os.getpid()} ({name})" in str(refused.value)
        assert refused.value.exit_code == 73

    ports = HeldPorts()
    try:
        assert ports.hold_own(WORKER, "10.0.0.1", told) == {WORKER: told[WORKER]}
    finally:
        ports.close()


def test_a_port_without_a_visible_holder_may_be_kept_by_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = HeldPorts()
    try:
        told = {WORKER: ports.hold([WORKER])[WORKER]}  # bound, but nothing listens there
        monkeypatch.delattr(socket, "SO_REUSEPORT")
        monkeypatch.setattr(socket, "SO_REUSEPORT", socket.SO_REUSEADDR, raising=False)  # as another user's would be
        with pytest.raises(UserError, match=r"`ss -tanp`, .* `procsv status` "):
            HeldPorts().hold_own(WORKER, "10.0.0.1", told)
    finally:
        ports.close()

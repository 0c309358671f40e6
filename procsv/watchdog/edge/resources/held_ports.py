"""Hold the ports of a run's tasks for the whole run.

launch.py makes the HeldPorts. The watchdog binds each port and never listens on it. So the port
stays ours, even between the death of a task and its next start. The task binds the port as well,
with SO_REUSEPORT. (TensorFlow's servers do so with TF_GRPC_REUSE_PORT=1.) In a run on one machine,
the ports are on 127.0.0.1, which no other machine can reach. If the watchdog is killed, the system
releases the ports.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Mapping

import psutil

from procsv.base import exit_codes
from procsv.base.cluster import needs_address
from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.terminal import printable

HOST = "127.0.0.1"
SHOWN = 3  # how many holders to name, the largest first


class HeldPorts:
    def __init__(self) -> None:
        self._sockets: dict[TaskId, socket.socket] = {}

    def hold(self, tasks: Iterable[TaskId]) -> dict[TaskId, str]:
        """Hold a free port for each task that needs one, and return the addresses as host:port.

        UserError if the system has no free port left.
        """
        for task in filter(needs_address, tasks):
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._sockets[task] = held
            try:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                held.bind((HOST, 0))
            except OSError as error:
                self.close()
                raise UserError(
                    f"there is no free port on {HOST} for {task}: {error.strerror}; {_held_by()}; "
                    "net.ipv4.ip_local_port_range says how many there are",
                    exit_codes.LOGDIR_UNUSABLE,
                ) from error
        return {task: f"{HOST}:{held.getsockname()[1]}" for task, held in self._sockets.items()}

    def hold_own(self, task: TaskId, host: str, told: Mapping[TaskId, str] | None) -> dict[TaskId, str]:
        """Hold the port of this machine's only task, and return the task's address.

        Return {} for a task that needs no address. Other machines must reach the task: `host` is
        the name by which they find this machine. `told`: the addresses that the cluster names; if
        None, take any free port. UserError if the port is not available.
        """
        if not needs_address(task):
            return {}
        port = int(told[task].rpartition(":")[2]) if told is not None else 0
        self._sockets[task] = held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("", port))
        except OSError as error:
            self.close()
            where = (
                f"port {port}, which the cluster names for {task}, is not available"
                if port
                else "there is no free port"
            )
            raise UserError(
                f"{where} on this machine: {error.strerror}; {_held_by(port)}", exit_codes.LOGDIR_UNUSABLE
            ) from error
        return {task: told[task] if told is not None else f"{host}:{held.getsockname()[1]}"}

    def close(self) -> None:
        for held in self._sockets.values():
            held.close()
        self._sockets.clear()


def _held_by(port: int = 0) -> str:
    holders = _name_holders(port)
    # The holder may be another user's process. Or it is a launch that holds the port for a task that is not running: the
    # system's table of connections does not list a port on which nobody listens.
    if not holders:
        who = "it" if port else "them"
        return f"procsv cannot see which process holds {who}: `ss -tanp`, as root, shows other users' processes, `procsv status` the runs that keep ports"
    return f"it is held by {holders}" if port else f"most are held by {holders}"


def _name_holders(port: int) -> str:
    """Name the processes that hold `port`, such as "process 71 (nginx)"; "" if none is visible.

    For port 0, name the processes that hold the most ports, with counts. Without root, other users'
    processes have no name.
    """
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return ""
    bound = {(c.pid, c.laddr.port) for c in connections if c.laddr and c.status != psutil.CONN_TIME_WAIT}
    held = Counter(pid for pid, bound_port in bound if not port or bound_port == port)
    return ", ".join(_name_all(held.most_common(SHOWN), says_count=not port))


def _name_all(holders: Iterable[tuple[int | None, int]], *, says_count: bool) -> Iterable[str]:
    for pid, count in holders:
        ports = f" with {count} port{'s' if count > 1 else ''}" if says_count else ""
        yield f"{_name(pid)}{ports}"


def _name(pid: int | None) -> str:
    if pid is None:
        return "a process of another user"
    try:
        return f"process {pid} ({printable(psutil.Process(pid).name())})"
    except psutil.Error:  # it has ended, or we may not inspect it
        return f"process {pid}"

"""The machines of a drill, all of them this one: a launch for each task, and spare ones, as a scheduler would start them.

Used by runner.py.  Where root may, each launch has a network of its own, from which it can be cut off; else all share this machine's, and
what that rules out is said.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping

import msgspec

from procsv.base.cluster import list_spares, make_cluster, needs_address
from procsv.base.identity import TaskId
from procsv.drill.networks import own_networks, why_no_networks
from procsv.watchdog.edge.resources.held_ports import HOST, HeldPorts

PORT = 2222  # of the task of a launch that has a network of its own


class Place(msgspec.Struct, frozen=True):
    """Where a launch is."""

    host: str
    launcher: tuple[str, ...] = ()  # what starts a command there
    network: str = ""  # the file of its namespace


class Machines(msgspec.Struct, frozen=True):
    """The launches, by what each is at the start of the run: a task, that whose state is saved first, or a spare one."""

    places: Mapping[TaskId, Place]
    addresses: Mapping[TaskId, str]  # host:port of the tasks that have one
    why_no_cuts: str = ""

    def environment(self, launch: TaskId) -> dict[str, str]:
        """What tells the launch which one it is."""
        config = {
            "cluster": make_cluster(self.addresses),
            "task": {"type": launch.role, "index": launch.index},
        }
        return {"TF_CONFIG": json.dumps(config), "PROCSV_HOST": self.places[launch].host}


@contextlib.contextmanager
def make_machines(tasks: tuple[TaskId, ...], spares: int) -> Iterator[Machines]:
    """CalledProcessError or UserError where the system has none left."""
    launches = tasks + list_spares(spares)
    if why := why_no_networks():
        ports = HeldPorts()
        try:
            yield Machines({launch: Place(HOST) for launch in launches}, ports.hold(tasks), why)
        finally:
            ports.close()
        return
    with own_networks(len(launches)) as networks:
        places = {
            launch: Place(network.address, network.launcher, network.namespace)
            for launch, network in zip(launches, networks, strict=True)
        }
        yield Machines(places, {task: f"{places[task].host}:{PORT}" for task in filter(needs_address, tasks)})

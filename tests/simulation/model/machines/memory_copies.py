"""The copy of the chief's memory on simulated machines: the member's side, the coordinator's side,
and what follows a loss.

Real code decides who keeps it, when it is fetched, what is kept and removed, and which one is used
after a loss. Files, fetches and sockets are modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from procsv.base.identity import CHECKPOINT, WATCHDOG
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.member_messages import MirrorOffer
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.incoming_slot import fetched_name
from procsv.ipc.shm.slot_file import NoRoom
from procsv.ipc.shm.slot_state import SlotInfo, SlotState
from procsv.watchdog.machines.coordinator import MemoryCopyRestore
from procsv.watchdog.machines.core.membership import Membership
from procsv.watchdog.machines.memory_copy.files import MemoryCopyFiles, OfferedMemoryCopy
from procsv.watchdog.machines.memory_copy.keeper import MemoryCopyKeeper
from procsv.watchdog.machines.memory_copy.relay import MemoryCopyRelay
from tests.simulation.model import history
from tests.simulation.model.machines.copies import SimFetch, SimSender
from tests.simulation.model.network import SimClient

if TYPE_CHECKING:
    from tests.simulation.model.machines.launch import Launch
    from tests.simulation.model.machines.links import LinkServer
    from tests.simulation.model.machines.machine_world import MachineWorld

NO_CONTEXT: Any = None  # stands for ZeroMQ's context


def ready(slots: list[SlotInfo]) -> list[SlotInfo]:
    """Return slots as scan_slots does: the newest sequence first."""
    return [slot for slot in slots if slot.state is SlotState.READY]


class SimMemoryCopyFiles(MemoryCopyFiles):
    """One machine's copies, which outlive its launches."""

    def __init__(self, world: MachineWorld) -> None:
        self.reached_at = world.name
        self._world, self._memory, self.directory = world, world.mirror, world.mirror.directory

    def newest(self) -> SlotInfo | None:
        return next(iter(ready(self._memory.infos())), None)

    def make_room(self, size: int) -> None:
        if not self._world.has_room:
            raise NoRoom(f"/shm has no room for {size} bytes")

    def keep_only(self, path: Path) -> None:
        for other in [one for one in self._memory.slots if one != path]:
            del self._memory.slots[other]

    def move(self, slot: SlotInfo, shm_dir: Path) -> None:
        moved = self._memory.slots.pop(slot.path)
        moved.info = msgspec.structs.replace(slot, path=shm_dir / fetched_name(slot))
        self._world.memory.slots[moved.info.path] = moved
        self.remove()

    def remove_drafts(self) -> None:
        self._memory.drafts.clear()

    def remove(self) -> None:
        self._memory.clear()


class SimOfferedMemoryCopy(OfferedMemoryCopy):
    def __init__(self, files: SimMemoryCopyFiles, launch: Launch) -> None:
        self._launch = launch
        super().__init__(files, launch.here.clock)

    def _listen(self, clock: object) -> Any:
        return SimSender(self._launch, self._launch.here.mirror)


class SimMemoryCopyKeeper(MemoryCopyKeeper):
    def __init__(self, launch: Launch, files: SimMemoryCopyFiles, run: str, host: str) -> None:
        super().__init__(files, run, host, launch.here.clock, lambda _: None)
        self._launch, self._sim_files = launch, files

    def _begin_fetch(self, offer: StateOffer, bytes_per_s: float) -> Any:
        launch = self._launch
        return SimFetch(launch, launch.here.mirror, self.host, offer, self._wake, bytes_per_s)

    def _make_offer(self) -> OfferedMemoryCopy:
        return SimOfferedMemoryCopy(self._sim_files, self._launch)

    def _wake(self) -> None:
        self._launch.wake()

    def die(self) -> None:
        """Its launch is killed. What it has stays, whole or half."""
        self._withdraw()
        self._wake_fd.close()


class SimMemoryCopyRelay(MemoryCopyRelay):
    def __init__(
        self, world: MachineWorld, server: LinkServer, members: Membership, start: Start, wake: Callable[[], None]
    ) -> None:
        any_server: Any = server
        super().__init__(NO_CONTEXT, any_server, members, start, world.clock, world.name)
        self._world, self._wake = world, wake

    def _connect(self, me: Address) -> Any:
        world = self._world
        return SimClient(world.network, world.socket(CHECKPOINT), me, world.clock, self._wake)


class SimMemoryCopyRestore(MemoryCopyRestore):
    def __init__(self, launch: Launch, start: Start, saved_step: int) -> None:
        world = launch.here
        super().__init__(
            start, launch.fleet.tasks[0], saved_step, world.clock, lambda _: None, world.fleet.say, world.name
        )
        self._launch = launch

    def _files(self) -> MemoryCopyFiles:
        return SimMemoryCopyFiles(self._launch.here)

    def _last_run(self) -> str:
        return self._launch.fleet.logdir.last_writer

    def _slots_here(self) -> list[SlotInfo]:
        return ready(self._launch.here.memory.infos())

    def _begin_fetch(self, one: MirrorOffer, ended: Callable[[], None]) -> Any:
        return SimFetch(self._launch, self._launch.here.memory, one.host, one.offer, ended)

    def tell(self) -> None:
        """Journal what coordinator.py does."""
        for entry in self.entries:
            self._launch.here.note(history.Journaled(entry.event, WATCHDOG, 1, entry.fields()))

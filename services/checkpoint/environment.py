"""Give the checkpoint service access to its machine: disk, slots, processes and threads.

process.py handles the messages itself.  It creates the real environment; the simulation uses one
that exists only in memory.  This module decides nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from procsv.base.clock import Clock
from procsv.base.encoding import decode_sealed, encode_json, seal
from procsv.base.errors import PeerError
from procsv.base.system import disk
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.processes import ExternalProcess, forbid_dumps, raise_descriptor_limit
from procsv.ipc.bulk.sender import Sender
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan
from procsv.ipc.messaging.curve_transport import told_state_port
from procsv.ipc.messaging.start import Start
from procsv.ipc.shm.file_parcel import FileOrder, list_parcels, place_parcel
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_reader import SlotReader, remove_slot
from procsv.ipc.shm.slot_state import SlotInfo
from procsv.services.checkpoint.core.facts import SavableState, Scan, Sighting, Verified
from procsv.services.checkpoint.format.names import absolute_save_path, step_in_name
from procsv.services.checkpoint.fs_events import OwnChanges, Watch
from procsv.services.checkpoint.orphan_shutdown import OrphanShutdown
from procsv.services.checkpoint.store import scan
from procsv.services.checkpoint.store.checkpoint_files import CheckpointFiles
from procsv.services.checkpoint.store.checkpoint_store import Store
from procsv.services.checkpoint.store.local_files import LocalFiles
from procsv.services.checkpoint.worker import Outcomes, Worker

# The name of a directory in which a trainer's Saver has staged files: sequence, attempt and run.  The directory is in
# shared memory or in the run's home (StagingBackend in procsv/training/snapshots/backends.py).
_STAGED = re.compile(r"staged\.(\d+)\.(\d+)\.([^.]+)$")


class CheckpointEnvironment:
    """Everything on the machine that the checkpoint service needs."""

    def __init__(self, start: Start, clock: Clock) -> None:
        self._start, self._clock, self._paths = start, clock, start.paths
        self._plan: CheckpointPlan | None = None  # the plan in the run directory
        self._own_changes = OwnChanges(clock)

    def store(self) -> Store:
        return Store(self._start, self._clock, self._files())

    def _files(self) -> CheckpointFiles:
        if self._start.has_local_logdir:
            return LocalFiles(self._start, self._clock, self._own_changes.expect)
        from procsv.services.checkpoint.remote.url_files import UrlFiles

        return UrlFiles(self._start)

    def worker(self, name: str, outcomes: Outcomes, niceness: int = 0) -> Worker:
        return Worker(name, outcomes, niceness)

    def slots(self) -> list[SlotInfo]:
        """Returns all slots with a whole header, of every state, newest first."""
        return scan_slots(self._paths.shm_dir, any_state=True)

    def plan_in(self, slot: SlotInfo) -> CheckpointPlan | None:
        """Returns the plan that a snapshot carries.

        None if the trainer has reused the slot; the caller then tries again.
        """
        with contextlib.suppress(PeerError, OSError):
            reader = SlotReader(slot)
            try:
                return reader.contents.plan
            finally:
                reader.close()
        return None

    def keep_plan(self, plan: CheckpointPlan) -> None:
        """Stores a trainer's plan, so that the next service process knows how to save staged files.

        A slot carries its plan; staged files carry none.
        """
        self._plan = plan
        with contextlib.suppress(OSError):  # no room: `restore_plan` tries again
            replace_file(self._paths.saver_plan, seal(encode_json(plan)), durable=False)

    def restore_plan(self) -> None:
        """Stores the plan again if something has removed its file."""
        if self._plan is not None and not self._paths.saver_plan.exists():
            self.keep_plan(self._plan)

    def kept_plan(self) -> CheckpointPlan | None:
        try:
            self._plan = decode_sealed(self._paths.saver_plan.read_bytes(), CheckpointPlan)
        except (OSError, msgspec.DecodeError):
            return None
        return self._plan

    def sender(self) -> Sender:
        """Creates the sender of snapshots to other machines.

        UserError if its port is taken.
        """
        forbid_dumps()  # a core dump would contain the keys
        raise_descriptor_limit()
        return Sender(told_state_port(), self._clock)

    def remove_slot(self, slot: SlotInfo) -> None:
        with contextlib.suppress(OSError):
            remove_slot(slot.path, slot)

    def staged(self) -> list[SavableState]:
        """Returns the checkpoints that trainers have staged and no service has removed yet.

        Some may be unfinished; these fail verification later.
        """
        paths, found = self._paths, []
        for directory in sorted([*paths.shm_dir.glob("staged.*"), *paths.home.glob("staged.*")]):
            match, index = _STAGED.match(directory.name), next(directory.glob("*.index"), None)
            if match is not None and index is not None:
                prefix = str(index)[: -len(".index")]
                sequence, incarnation, run = int(match[1]), int(match[2]), match[3]
                found.append(
                    SavableState(
                        sequence=sequence,
                        step=step_in_name(prefix),
                        incarnation=incarnation,
                        run=run,
                        slot=None,
                        staged=prefix,
                    )
                )
        return found

    def remove_staged(self, prefix: str) -> None:
        """Removes the staging directory that holds `prefix`, and never any other directory."""
        directory, paths = Path(prefix).parent, self._paths
        if _STAGED.match(directory.name) and directory.parent in (paths.shm_dir, paths.home):
            disk.try_to_remove_tree(directory)

    def parcels(self) -> list[Path]:
        """Returns the files that trainers have handed over and that are still to be placed.

        The oldest comes first.
        """
        return list_parcels(self._start.paths.shm_dir)

    def place(self, parcel: Path) -> FileOrder:
        return place_parcel(parcel)

    def watch_directory(self, on_change: Callable[[], None]) -> Watch:
        """Creates a watch on the checkpoint directory.

        The watch calls `on_change`, on its own thread, when the directory may have changed.
        """
        return Watch(on_change, self._own_changes)

    def scan_directory(self, plan: CheckpointPlan, watch: Watch) -> Scan:
        """Scans the checkpoint directory, which must be local, and watches it from now on."""
        # Watch first, so that a change after the scan gives a hint.
        watch.keep_watching(Path(absolute_save_path(plan)).parent)
        return scan.scan_directory(plan)

    def examine(self, sighting: Sighting) -> Verified:
        return scan.examine(sighting, self._clock)

    def external_process(self, pid: int) -> ExternalProcess:
        return ExternalProcess(pid)

    def orphan_shutdown(self, trainers: list[ExternalProcess], now_s: float) -> OrphanShutdown:
        return OrphanShutdown(self._start, trainers, now_s)

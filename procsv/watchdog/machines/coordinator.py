"""Form a run on several machines, as its coordinator.

The coordinator is the launch that has the task whose state is saved. Used by main.py. If the
coordinator is killed while it forms the run, the members find a term whose coordinator does not
answer, and wait for the next one.
"""

from __future__ import annotations

from procsv.base.errors import UserError
from procsv.base.placement import Placement
from procsv.base.run.terms import withdraw_terms
from procsv.ipc.messaging.curve_transport import derive_keys
from procsv.ipc.messaging.start import Start
from procsv.watchdog.edge.formation import Formed
from procsv.watchdog.edge.launch import Launch
from procsv.watchdog.edge.opening.held_logdir import wait_with_lease
from procsv.watchdog.edge.opening.logdir_lease import Wait
from procsv.watchdog.edge.opening.open_run import OpenedRun, remove_run
from procsv.watchdog.machines.core.adoption import NothingToAdopt
from procsv.watchdog.machines.forming import Forming, refuse_members, say_where
from procsv.watchdog.machines.memory_copy.restore import MemoryCopyRestore


class Coordinator:
    """Implements Formation for a launch with that placement."""

    def __init__(self, placement: Placement, secret: bytes) -> None:
        """`secret`: shared by all launches; if it is empty, the run's keys are generated here."""
        self._placement = placement
        self._keys = derive_keys(secret, placement.scheduler) if secret else None

    def refuse(self, launch: Launch, error: UserError) -> None:
        refuse_members(launch.start, self._placement, self._keys, error, launch.clock)

    def form(self, launch: Launch, opened: OpenedRun) -> Formed:
        """Gather the members and form the run.

        Raises UserError if some do not come; the ones that came are told why there is no run.
        """
        start, clock = launch.start, launch.clock
        wait = wait_with_lease(start.paths, opened.lease, clock, launch.wait)
        restore = MemoryCopyRestore(start, self._placement.task, opened.saved_step, clock, wait, launch.console.say)
        try:
            return self._form(launch, wait, restore)
        except UserError:
            remove_run(start.paths, opened, keep_memory=True)
            raise

    def _form(self, launch: Launch, wait: Wait, restore: MemoryCopyRestore) -> Formed:
        forming, survivors = Forming(launch.start, self._placement, self._keys, launch.clock), None
        say = launch.console.say
        say_where(say)
        try:
            forming.publish()
            forming.gather(wait, say)
            while forming.has_run_before and survivors is None:
                try:
                    survivors = forming.adopt(launch.ports)
                except NothingToAdopt as why:
                    forming.begin_anew(str(why), say)
                    forming.gather(wait, say)
            if forming.wants_copy(survivors):
                restore.fetch_newest(forming.copy_offers)
            start, remote = forming.finish(launch.ports, survivors)
            return Formed(start, remote, restore.entries)
        except UserError as error:
            forming.refuse(error)
            raise

    def withdraw(self, start: Start) -> None:
        withdraw_terms(start.paths, start.run)

"""Snapshots in transit from one simulated machine to another: ipc/bulk, in turns of the clock.

The real Transfer decides which pieces to request, when to repeat a request and when the peer is
gone. Packets that do not get through are lost. An incomplete copy is a draft, which stays if the
fetching process is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from procsv.base.errors import PeerError
from procsv.ipc.bulk.fetch import LOOK_S
from procsv.ipc.bulk.sender import OFFER_S_MAX
from procsv.ipc.bulk.transfer import Transfer, TransferPiece
from procsv.ipc.messaging.checkpoint_messages import StateOffer
from procsv.ipc.shm.incoming_slot import fetched_name
from procsv.ipc.shm.slot_state import SlotInfo
from tests.simulation.model.machines import facts
from tests.simulation.model.memory import SimMemory, Slot, SlotIsGone
from tests.simulation.model.processes import Process

if TYPE_CHECKING:
    from tests.simulation.model.machines.machine_world import MachineWorld

TURN_S_MIN = 0.005
TORN = -1  # the value of an incomplete or damaged copy


@dataclass(eq=False, slots=True)
class Offered:
    """A snapshot that may be fetched. Until then it is held as a reader holds it."""

    process: Process
    slot: Slot
    info: SlotInfo
    holder: int
    heard_s: float
    silence_s: float

    def release(self) -> None:
        if self.holder in self.slot.readers:
            self.slot.readers.remove(self.holder)


class SimSender:
    """The Sender of one process, for the snapshots in one memory of its machine."""

    def __init__(self, process: Process, memory: SimMemory) -> None:
        self._process, self._memory, self._world = process, memory, world_of(process)
        self._tokens: set[bytes] = set()

    def offer(self, info: SlotInfo, silence_s: float | None = None) -> StateOffer:
        fleet = self._world.fleet
        try:
            slot = self._memory.read(info)
        except SlotIsGone as gone:
            raise PeerError(str(gone)) from gone
        number = fleet.new_port()
        token, limit_s = f"{number:016d}".encode(), OFFER_S_MAX if silence_s is None else silence_s
        offered = Offered(self._process, slot, info, -number, fleet.clock.now_s, limit_s)
        slot.readers.append(offered.holder)
        fleet.offers[token] = offered
        self._tokens.add(token)
        self._look_again(token)
        return StateOffer(number, "", "", "", token, fleet.program.size, info.sequence, info.toc_hash)

    def _look_again(self, token: bytes) -> None:
        """Forget snapshots that nobody fetches any more."""
        clock, offered = self._world.fleet.clock, self._world.fleet.offers.get(token)
        if offered is None or offered.silence_s > OFFER_S_MAX:
            return
        if clock.now_s >= offered.heard_s + offered.silence_s:
            self._forget(token)
        else:
            clock.at(offered.heard_s + offered.silence_s, lambda: self._look_again(token))

    def _forget(self, token: bytes) -> None:
        if (offered := self._world.fleet.offers.pop(token, None)) is not None:
            offered.release()

    def close(self) -> None:
        for token in self._tokens:
            self._forget(token)
        self._tokens.clear()

    def interrupt(self) -> None:
        """Its process has died."""
        self.close()


class SimFetch:
    """A Fetch for `process` into `memory`."""

    def __init__(
        self,
        process: Process,
        memory: SimMemory,
        host: str,
        offer: StateOffer,
        ended: Callable[[], None],
        bytes_per_s: float | None = None,
    ) -> None:
        self.slot: Path | None = None
        self.size, self.error, self.seconds, self.is_over = offer.size, "", 0.0, False
        self._process, self._memory, self._world, self._ended = process, memory, world_of(process), ended
        self._fleet, self._host, self._offer = self._world.fleet, host, offer
        self._is_wanted, self._is_damaged, self._line_s = True, False, 0.0
        self._offered = self._fleet.offers.get(offer.token)
        self._began_s = self._world.clock.now_s
        self._transfer = Transfer(offer.size, self._began_s, bytes_per_s)
        self._draft = Path(f".slot.{offer.token.decode()}.new")
        memory.drafts.add(self._draft)
        self._turn()

    # -- requests and pieces ---------------------------------------------------------------------------------
    def _turn(self) -> None:
        if self.is_over or self._process.is_dead:
            return  # a draft stays
        if self._process.is_frozen:
            self._fleet.clock.after(LOOK_S, self._turn)
            return
        if not self._is_wanted:
            self._end("nobody wants it any more")
        elif self._transfer.is_silent(self._world.clock.now_s):
            self._end(f"nothing has come, after {self._transfer.come_bytes} of {self.size} bytes")
        else:
            self._ask()
            self._fleet.clock.after(
                max(TURN_S_MIN, self._transfer.pause_s(self._world.clock.now_s, LOOK_S)), self._turn
            )

    def _ask(self) -> None:
        links = self._fleet.links
        for piece in self._transfer.next_pieces(self._world.clock.now_s):
            delay_s = links.latency_s(self._world.name, self._host)
            self._fleet.clock.after(delay_s, lambda piece=piece: self._send(piece))  # type: ignore[misc]

    def _send(self, piece: TransferPiece) -> None:
        """Send a piece, on the sender's side."""
        fleet, links, offered = self._fleet, self._fleet.links, self._offered
        if self.is_over or offered is None or not links.goes(self._world.name, self._host):
            return
        if offered.process.is_dead or offered.process.is_frozen:
            return
        back_s = links.latency_s(self._host, self._world.name)
        if self._offer.token not in fleet.offers:
            fleet.clock.after(back_s, self._gone)
            return
        self._is_damaged = self._is_damaged or offered.slot.info != offered.info  # refilled although it is held
        offered.heard_s = fleet.clock.now_s
        self._line_s = max(self._line_s, fleet.clock.now_s) + piece.size / fleet.bytes_per_s
        fleet.clock.at(self._line_s + back_s, lambda: self._came(piece))

    def _is_deaf(self) -> bool:
        is_away = self.is_over or self._process.is_dead or self._process.is_frozen
        return is_away or not self._fleet.links.goes(self._host, self._world.name)

    def _gone(self) -> None:
        if not self._is_deaf():
            self._end(f"{self._host} does not offer it any more")

    def _came(self, piece: TransferPiece) -> None:
        if self._is_deaf() or not self._transfer.came(piece.offset, piece.size, self._world.clock.now_s):
            return
        self._is_damaged = self._is_damaged or self._fleet.rng.random() < self._fleet.damage
        if self._transfer.is_complete:
            self._has_come()
        else:
            self._ask()

    # -- the end ---------------------------------------------------------------------------------------------
    def _has_come(self) -> None:
        offered = self._offered
        assert offered is not None, "something has come of what nobody offered"
        is_whole = self._transfer.come_bytes == self.size and not self._is_damaged
        value = offered.slot.value if is_whole else TORN
        whole = Slot(offered.info, value, offered.slot.plan, is_good=is_whole and offered.slot.is_good)
        try:
            verify(whole, self._offer)
        except PeerError as error:
            self._end(str(error))
            return
        self.slot = self._memory.directory / fetched_name(offered.info)
        whole.info = msgspec.structs.replace(offered.info, path=self.slot)
        self._memory.slots[self.slot] = whole
        self._end("")

    def _end(self, error: str) -> None:
        self.error, self.is_over = error, True
        self.seconds = self._world.clock.now_s - self._began_s
        self._memory.drafts.discard(self._draft)
        self._give_back()
        if self.slot is not None:
            slot = self._memory.slots[self.slot]
            what = (slot.info.run, slot.info.sequence, slot.info.step, slot.value)
            self._fleet.note(facts.Copied(self._world.name, *what, self.seconds), self._world)
        self._ended()

    def _give_back(self) -> None:
        """Report that nobody fetches it any more. If that is lost, it is held until the sender's timeout."""
        fleet, links, token = self._fleet, self._fleet.links, self._offer.token
        if links.goes(self._world.name, self._host):
            offered = fleet.offers.pop(token, None)
            if offered is not None:
                offered.release()

    def give_up(self) -> None:
        self._is_wanted = False
        if self.slot is not None:
            self._memory.slots.pop(self.slot, None)

    def stop(self) -> None:
        self._is_wanted = False

    def wait_over(self) -> None:
        if not self.is_over:
            self._end("it was given up")


def verify(slot: Slot, offer: StateOffer) -> None:
    """Do IncomingSlot.verify."""
    if (slot.info.sequence, slot.info.toc_hash) != (offer.sequence, offer.contents_hash):
        raise PeerError(f"received snapshot {slot.info.sequence} instead of the offered {offer.sequence}")
    if slot.value != offer.contents_hash:
        raise PeerError("damaged on its way")


def world_of(process: Process) -> MachineWorld:
    world: Any = process.world
    return world  # type: ignore[no-any-return]

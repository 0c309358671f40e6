"""A process that runs the user's program: its link to the others, its signals, and the program as
one coroutine.

The coroutine waits for time or for news. Link and delivery are real code; a subclass says what the
program does.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, ClassVar

from procsv.base.grace import FORCED_SHARE, TRAINER_SHARE
from procsv.base.identity import CHECKPOINT, WATCHDOG, TaskId
from procsv.base.outcome import Exit, LastWords
from procsv.base.run.manifest import Reason
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import Ack, Body, Hello
from procsv.ipc.messaging.watchdog_messages import StopTraining
from procsv.ipc.shm.heartbeat import Heartbeat, Phase
from tests.simulation.model.network import SimClient
from tests.simulation.model.processes import Process
from tests.simulation.model.program import ProgramError

if TYPE_CHECKING:
    from tests.simulation.model.world import World

LINK_S = 0.2  # how often the real link looks around
STEP_READ_S = 0.5  # how old a step in the heartbeat may be
ANSWER_S_MAX = 600.0
FORK_S = 0.02  # from a fork to the first line of the program

# What the program waits for: seconds, or news within that many seconds (the answer says whether it
# came).
Wait = float | tuple[Callable[[], bool], float]
Doing = Generator[Wait, bool, None]


class ProgramProcess(Process):
    peers: ClassVar[tuple[TaskId, ...]] = (WATCHDOG,)  # the peers it sends to

    def __init__(
        self,
        world: World,
        task: TaskId,
        incarnation: int,
        run: str,
        grace_s: float,
        *,
        standby: Process | None = None,
        is_fork: bool = False,
    ) -> None:
        """`standby` is the process before it, with its imports done; `is_fork`: it was forked and
        the standby waits on.
        """
        super().__init__(world, task, incarnation, standby.pid if standby is not None else 0)
        self._import_s = world.program.import_s if standby is None and not is_fork else FORK_S
        self.frozen_until_s = standby.frozen_until_s if standby is not None else 0.0
        self.holds_lock = True
        self.run_id, self._grace_s = run, grace_s
        self.phase, self.words = Phase.IMPORT, LastWords()
        self.step, self.value = -1, 0
        self.is_ready = False
        self.hung_s: float | None = None  # when the program stopped progressing although it should
        self._read = (-1, world.clock.now_s)  # the step in the heartbeat, and when it was read
        self._runs = 0
        self._beat_s = 0.0
        self._doom: ProgramError | None = None
        self._stop_reason: Reason | None = None
        self._stop_s = 0.0
        self._answers: dict[int, Body] = {}
        self._asked: set[int] = set()
        me = Address(run, task, incarnation)
        self._clients = {
            peer: SimClient(world.network, world.socket(peer), me, world.clock, self.wake) for peer in self.peers
        }
        self._program = self._main()
        self._wait: Wait = 0.0
        self._until_s = 0.0
        self._has_to_abort = False
        self._has_begun = self._is_started = False
        self.wake(0.05)

    # -- for a subclass to implement -------------------------------------------------------------------------
    def _main(self) -> Doing:
        """Run the program."""
        raise NotImplementedError

    def _on_connected(self, peer: TaskId, client: SimClient) -> None:
        """Send what it reports after Hello."""

    def _on_heard(self, body: Body) -> None:
        """Handle a message that is not an answer."""

    def _send_news(self, now_s: float) -> None:
        """Send what has gathered since the last turn."""

    def _news_due_s(self, now_s: float) -> float | None:
        return None

    # -- the view of others ----------------------------------------------------------------------------------
    def beat(self) -> Heartbeat | None:
        """Return the heartbeat. The link's thread writes it, which a frozen process does not run."""
        if not self._has_begun:
            return None
        if not self.is_frozen and not self.is_dead:
            self._beat_s = self.world.clock.now_s
        return Heartbeat(self.phase, self._read[0], self._runs, self._beat_s, 0.0)

    def doom(self, error: ProgramError) -> None:
        """Let the program raise this where it is."""
        self._doom = error
        self.wake()

    def hang(self) -> None:
        """Stop the program's progress. Its link goes on."""
        self.hung_s = self.world.clock.now_s

    @property
    def is_stuck(self) -> bool:
        return self.hung_s is not None or super().is_stuck

    def hear_signal(self, number: int) -> None:
        if number == signal.SIGTERM:
            if not self.is_frozen:
                self._request_stop("preempt")
            else:
                self.world.clock.at(self.frozen_until_s, lambda: self._request_stop("preempt"))
        elif number == signal.SIGCONT:
            self.thaw()
            if self._has_to_abort:
                self._abort()
        elif number == signal.SIGABRT:
            self._abort()
        else:
            assert signal.SIGRTMIN <= number <= signal.SIGRTMAX, (
                f"signal {number} to {self.task}"
            )  # its stacks are dumped

    def _abort(self) -> None:
        """Deliver SIGABRT. It reaches a stopped process when that continues."""
        self._has_to_abort = True
        if not self.is_frozen:
            self.die(Exit(None, signal.SIGABRT), "watchdog")

    # -- a turn of the link ----------------------------------------------------------------------------------
    def turn(self) -> None:
        now_s = self.world.clock.now_s
        self._has_begun = True
        if self.is_orphan:
            self._request_stop("preempt")
        if self.is_dead:
            return
        for task, client in self._clients.items():
            self._greet(task, client)
            while not self.is_dead and (received := client.receive()) is not None:
                self._hear(client, received)
        self._advance(now_s)
        if self.is_dead:
            return
        self._send_news(now_s)
        self._plan_next_turn(now_s)

    def _greet(self, task: TaskId, client: SimClient) -> None:
        if not client.resend_due():
            return
        client.send_reliable(Hello(self.pid))
        self._on_connected(task, client)
        client.resend_due()

    def _hear(self, client: SimClient, received: Received) -> None:
        if received.re in self._asked and client is self._clients[CHECKPOINT] and not isinstance(received.body, Ack):
            self._answers[received.re] = received.body
        if isinstance(received.body, StopTraining):
            self._request_stop(received.body.reason)
        else:
            self._on_heard(received.body)
        if not self.is_dead:
            client.acknowledge(received)

    def _plan_next_turn(self, now_s: float) -> None:
        dues = [self._until_s] if self.hung_s is None else []
        for client in self._clients.values():
            due_s = client.peer.outbox.next_due_s()
            if due_s is not None and client.server is not None:
                dues.append(max(due_s, now_s + LINK_S))
        if (news_s := self._news_due_s(now_s)) is not None:
            dues.append(max(news_s, now_s + LINK_S))
        if dues:
            self.wake(max(0.0, min(dues) - now_s))

    def _request_stop(self, reason: Reason) -> None:
        if self.is_dead:
            return
        if self._stop_reason is not None:
            self._stop_reason = reason if self._stop_reason == "preempt" else self._stop_reason
            return
        self._stop_reason, self._stop_s = reason, self.world.clock.now_s
        self.world.clock.after(self._grace_s * TRAINER_SHARE * FORCED_SHARE, self._force)
        self.wake()

    def _force(self) -> None:
        """Do os._exit from a thread of its own."""
        if self.is_frozen:
            self.world.clock.at(self.frozen_until_s, self._force)
        else:
            self.die(Exit(75, None), "itself")

    # -- the program's thread --------------------------------------------------------------------------------
    def _advance(self, now_s: float) -> None:
        if self.hung_s is not None:
            return
        while not self.is_dead:
            if self._doom is not None:
                doom, self._doom = self._doom, None
                self._end(doom)
                return
            came = True
            if isinstance(self._wait, tuple):
                came = self._wait[0]()
                if not came and now_s < self._until_s:
                    return
            elif now_s < self._until_s:
                return
            try:
                self._wait = self._program.send(came) if self._is_started else next(self._program)
                self._is_started = True
            except StopIteration:
                self.die(Exit(0 if self._stop_reason is None else 75, None), "itself")
                return
            except ProgramError as error:
                self._end(error)
                return
            self._until_s = now_s + (self._wait[1] if isinstance(self._wait, tuple) else self._wait)

    def _end(self, error: ProgramError) -> None:
        """Let the program's error leave it: its last words, and the process ends."""
        if error.type:
            permanent = error.permanent and self.step < 0
            self.words = LastWords(
                error.type, error.message, "Traceback\n", self.step, permanent, lost_peer=error.lost_peer
            )
        exit = Exit(error.code, None) if error.signal is None else Exit(None, error.signal)
        self.die(exit, "peer" if error.lost_peer else "program")

    # -- for programs ----------------------------------------------------------------------------------------
    def _tell(self, task: TaskId, body: Message) -> int:
        return self._clients[task].send_reliable(body)

    def _ask(self, body: Message) -> Generator[Wait, bool, Body]:
        seq = self._tell(CHECKPOINT, body)
        self._asked.add(seq)
        if not (yield (lambda: seq in self._answers), ANSWER_S_MAX):
            raise ProgramError("UserError", "the checkpoint service did not say which state to start from")
        return self._answers.pop(seq)

    def _read_step(self, now_s: float) -> None:
        """Return the step in the heartbeat."""
        if now_s >= self._read[1] + STEP_READ_S:
            self._read = (self.step, now_s)

    def let_go(self) -> None:
        for client in self._clients.values():
            client.close()
        self._program.close()

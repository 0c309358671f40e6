"""Stand in for the checkpoint service on a member's machine.

Used by member_loop.py. The task connects to the proxy as it would to the service, and asks which
state to start from. The proxy passes the question on to the coordinator, and the answer back to the
task. If the answer is a snapshot, the snapshot is in the memory of the chief's machine. So the
proxy first fetches it into a local slot. If that fails, the task starts from a checkpoint in the
logdir, which all machines share. The proxy refuses to write files for the task. It acknowledges the
task's other messages, and does not pass them on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from procsv.base.clock import Clock
from procsv.base.identity import TaskId
from procsv.base.journal.entries import StateFetched, StateNotFetched
from procsv.ipc.bulk.fetch import Fetch, WakeFd
from procsv.ipc.messaging import checkpoint_messages, watchdog_messages
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.member_messages import AskState, TaskSaid
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import encode_body
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Server, Waiter

HEARD_MAX = 1000  # messages per turn of the loop
ELSEWHERE = "the checkpoint service is on the chief's machine, and writes no files of other tasks"
NOT_OFFERED = "the coordinator's machine does not offer its snapshot; see the log of its checkpoint service"

News = AskState | TaskSaid


class CheckpointProxy:
    def __init__(self, server: Server, start: Start, host: str, clock: Clock, say: Callable[[str], None]) -> None:
        """`server`: listens at the service's address; closed here. `host`: the coordinator's
        machine. `say`: prints to the console.
        """
        self.server = server
        self._start, self._clock, self._say = start, clock, say
        self.host = host  # changes if a new coordinator is on another machine
        self._wake_fd = WakeFd()
        self._asked: Received | None = None  # the open question; a task has one at a time
        self._durable_only = False  # whether the open question is only for state on disk
        self._told: checkpoint_messages.RestoreFrom | None = None  # the answer, held back until its state is fetched
        self._fetch: Fetch | None = None  # the fetch under way
        self._given_up: list[Fetch] = []  # abandoned fetches that may still run for a moment
        self._slot: Path | None = None  # the fetched state, until the task has it
        self._has_failed = False  # a fetch has failed, and the console says so
        self._news: list[News] = []

    def listen(self, waiter: Waiter) -> None:
        waiter.register(self.server)
        waiter.register(self._wake_fd.fd)

    def poll_proxy(self) -> list[News]:
        """Return what to send to the coordinator: questions and notes."""
        self._wake_fd.clear()
        for _ in range(HEARD_MAX):
            if (received := self.server.receive()) is None:
                break
            match received.body:
                case checkpoint_messages.Restore(durable_only):
                    self._drop_state()
                    self._asked = received
                    self._ask(received, durable_only)
                case checkpoint_messages.PlaceFile(parcel):
                    answer = checkpoint_messages.FilePlaced(parcel, ELSEWHERE)
                    self.server.send_reliable(received.who, answer, re=received.seq)
                case body:
                    if isinstance(body, checkpoint_messages.Restored):
                        self._drop_slot()  # the task has mapped or copied it
                    self.server.acknowledge(received)
        self._look_at_fetch()
        news, self._news = self._news, []
        return news

    @property
    def open_question(self) -> AskState | None:
        """The question that still has no answer."""
        asked = self._asked
        return AskState(asked.task, asked.incarnation, self._durable_only) if asked is not None else None

    def pass_answer(self, incarnation: int, answer: Message) -> None:
        """Handle the coordinator's answer to that attempt's question; ignore it if no such question
        is open.
        """
        asked = self._asked
        if asked is None or asked.incarnation != incarnation or not isinstance(answer, checkpoint_messages.RestoreFrom):
            return
        if answer.source != "memory":
            self._asked = None
            self._drop_state()
            self.server.send_reliable(asked.who, answer, re=asked.seq)
        elif answer.offer is None:
            self._not_fetched(asked, answer, NOT_OFFERED)
        elif self._fetch is None:
            self._told = answer
            self._fetch = Fetch(self.host, answer.offer, self._start.paths.shm_dir, self._clock, self._wake)

    def forget_attempt(self, task: TaskId, incarnation: int) -> None:
        """Drop what belongs to that attempt, which is dead."""
        self.server.forget(task, incarnation)
        if self._asked is None or self._asked.incarnation <= incarnation:
            self._asked = None
            self._drop_state()

    def close(self) -> None:
        self._drop_state()
        for fetch in self._given_up:
            fetch.wait_over()
        self.server.close()
        self._wake_fd.close()

    # -- what is fetched -------------------------------------------------------------------------------------
    def _wake(self) -> None:
        self._wake_fd.wake()

    def _look_at_fetch(self) -> None:
        fetch, told, asked = self._fetch, self._told, self._asked
        if fetch is None or not fetch.is_over:
            return
        self._fetch = self._told = None
        assert told is not None, "fetched without an answer"
        assert asked is not None, "fetched for nobody"  # dropping the question also drops the fetch
        if fetch.slot is None:
            self._not_fetched(asked, told, fetch.error)
        else:
            self._asked, self._slot = None, fetch.slot
            size, seconds = fetch.size, round(fetch.seconds, 3)
            note = watchdog_messages.Note(StateFetched(step=told.step, bytes=size, seconds=seconds))
            self._tell(asked, note)
            here = replace(told, path=str(fetch.slot), offer=None)
            self.server.send_reliable(asked.who, here, re=asked.seq)

    def _not_fetched(self, asked: Received, told: checkpoint_messages.RestoreFrom, why: str) -> None:
        """Ask for a state on disk instead of the state that could not be fetched.

        The service answers once it has saved that state to disk.
        """
        if not self._has_failed:
            self._has_failed = True
            self._say(f"{asked.task} starts from the checkpoint, as the memory of {self.host} was not fetched: {why}")
        self._tell(asked, watchdog_messages.Note(StateNotFetched(step=told.step, why=why)))
        self._ask(asked, durable_only=True)

    def _ask(self, asked: Received, durable_only: bool) -> None:
        self._durable_only = durable_only
        self._news.append(AskState(asked.task, asked.incarnation, durable_only))

    def _tell(self, asked: Received, note: watchdog_messages.Note) -> None:
        now_s = self._clock.monotonic()
        self._news.append(TaskSaid(asked.task, asked.incarnation, encode_body(note), now_s))

    def _drop_state(self) -> None:
        if self._fetch is not None:
            self._fetch.give_up()
            self._given_up = [*(one for one in self._given_up if not one.is_over), self._fetch]
        self._fetch = self._told = None
        self._drop_slot()

    def _drop_slot(self) -> None:
        if self._slot is not None:
            self._slot.unlink(missing_ok=True)
            self._slot = None

"""Pass questions from tasks on other machines to the local checkpoint service.

Used by remote_tasks.py. A task asks which state to start from. Each question has a connection of
its own, which looks like the task itself to the service. Only the answer is passed on; the
service's other messages are dropped.
"""

from __future__ import annotations

from procsv.base.clock import Clock
from procsv.base.identity import CHECKPOINT, TaskId
from procsv.ipc.messaging.checkpoint_messages import Restore, RestoreFrom
from procsv.ipc.messaging.endpoint import Address
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.zmq_transport import Client, Context, Waiter


class Questions:
    """The open questions, by task."""

    def __init__(self, context: Context, start: Start, clock: Clock) -> None:
        self._context, self._start, self._clock = context, start, clock
        self._waiter: Waiter | None = None
        self._open: dict[TaskId, Client] = {}
        self._unasked: dict[TaskId, tuple[int, bool]] = {}  # waiting for a free descriptor

    def listen(self, waiter: Waiter) -> None:
        self._waiter = waiter

    def ask(self, task: TaskId, incarnation: int, durable_only: bool) -> None:
        """Ask what that attempt should start from. This replaces the task's previous question."""
        self.withdraw_question(task)
        me = Address(self._start.run, task, incarnation)
        try:
            client = Client(self._context, self._start.paths.service_socket(CHECKPOINT), me, self._clock)
        except OSError:
            self._unasked[task] = incarnation, durable_only
            return
        client.send_reliable(Restore(durable_only, fetches=True))
        self._open[task] = client
        if self._waiter is not None:
            self._waiter.register(client)

    def poll_questions(self) -> list[tuple[TaskId, int, RestoreFrom]]:
        """Return the answers that have come, each with its task and attempt."""
        for task, question in list(self._unasked.items()):
            self.ask(task, *question)
        answers: list[tuple[TaskId, int, RestoreFrom]] = []
        for task, client in self._open.items():
            client.resend_due()
            while (received := client.receive()) is not None:
                client.acknowledge(received)
                if isinstance(received.body, RestoreFrom):
                    answers.append((task, client.me.incarnation, received.body))
        for task, _, _ in answers:
            self.withdraw_question(task)
        return answers

    def withdraw_question(self, task: TaskId) -> None:
        """Drop the task's question."""
        self._unasked.pop(task, None)
        if (client := self._open.pop(task, None)) is None:
            return
        if self._waiter is not None:
            self._waiter.remove(client)
        client.close()

    def close(self) -> None:
        for task in list(self._open):
            self.withdraw_question(task)

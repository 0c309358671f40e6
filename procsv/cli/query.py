"""Find the run in a directory, and query its watchdog.

Used by status, stop and logs.  Every query has a time limit; a missing answer is None.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from procsv.base.errors import UserError
from procsv.base.identity import COMMAND_LINE
from procsv.base.location import local_path
from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import FINAL_STATES, RunFile, find_run_in
from procsv.base.run.saved_step import saved_step
from procsv.base.system.data_file import open_data
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import Body

ASK_S_MAX = 0.7  # `status` answers within one second, whatever the trainer does


def find_run(directory: str) -> RunFile:
    """The run in `directory`; UserError if there has never been one."""
    path, paths = directory, find_paths(directory)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.close(
            open_data(paths.run_json)
        )  # another user's: PermissionError, not "there is none"; NotAFile says what it is
    run = find_run_in(paths)
    if run is not None:
        return run if run.state in FINAL_STATES or run.is_active else _after_its_watchdog(run)
    if not paths.logdir.is_dir():
        raise UserError(
            f"no run of {path} is known on this machine; look on the machine that ran it"
            if local_path(path) is None
            else f"there is no directory {path}"
        )
    if paths.run_json.exists():
        raise UserError(f"{paths.run_json} cannot be read: it is damaged, or of another version of procsv")
    raise UserError(f"{path} is not the logdir of a run: it has no procsv/run.json")


def _after_its_watchdog(run: RunFile) -> RunFile:
    """Whoever ran it was killed; what its services saved after that stands in no run.json, but beside the checkpoints."""
    saved = saved_step(run.checkpoint_dir)
    durable_step = max(run.durable_step, saved)
    return msgspec.structs.replace(run, durable_step=durable_step, step=max(run.step, durable_step))


def ask(run: RunFile, question: Message, limit_s: float = ASK_S_MAX) -> Body | None:
    """The watchdog's answer, or None if there is none within `limit_s`."""
    from procsv.base.system.system_clock import SystemClock
    from procsv.ipc.messaging.endpoint import Address
    from procsv.ipc.messaging.zmq_transport import Client, Waiter, new_context

    socket_path = run.paths.control_socket
    if not os.access(socket_path, os.W_OK):
        return None  # there is none, or it is another user's
    clock, context = SystemClock(), new_context()
    client = Client(context, socket_path, Address("", COMMAND_LINE, 1), clock)
    try:
        waiter = Waiter()
        waiter.add(client)
        until_s = clock.monotonic() + limit_s
        seq = client.send_reliable(question)
        while (left_s := until_s - clock.monotonic()) > 0:
            waiter.wait(left_s)
            client.tick()
            while (received := client.receive()) is not None:
                if received.re == seq:
                    return received.body
    finally:
        client.close(linger_ms=0)
        context.term()
    return None

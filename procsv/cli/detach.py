"""`procsv launch --detach`: start the watchdog in a session of its own and wait until its run has begun.

Called by launch.py.  What the watchdog says goes to procsv/logs/watchdog.<number>.log; what the program prints is in its own
logs, as always.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import click

from procsv.base.identity import WATCHDOG
from procsv.base.journal.entries import Spawned
from procsv.base.journal.file import read_journal
from procsv.base.run.logs import newest_number
from procsv.base.run.paths import RunPaths
from procsv.base.run.records import make_home, open_record
from procsv.base.run.run_file import read_run
from procsv.ipc.messaging.start import Start

LOOK_S = 0.05


def launch_detached(start: Start) -> int:
    """Exit code: 0 as soon as the program has been started, or the watchdog's own if it has ended before."""
    make_home(start.paths, group_readable=start.settings.group_readable)
    log = _new_log(start.paths)
    with os.fdopen(open_record(log, os.O_WRONLY | os.O_APPEND), "ab") as output:
        process = subprocess.Popen(
            start.argv(),
            env=start.environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    pause = threading.Event()
    while not _has_begun(start):
        if process.poll() is not None:
            click.echo(log.read_text(errors="replace"), err=True, nl=False)
            log.unlink(missing_ok=True)  # it has been said
            return process.returncode
        pause.wait(LOOK_S)
    process.returncode = 0  # it goes on, and is no child of ours any more
    where = start.logdir
    click.echo(f"{start.target} runs as process {process.pid} in {where}")
    click.echo(f"  procsv status {where}    procsv logs -f {where}    procsv stop {where}")
    return 0


def _new_log(paths: RunPaths) -> Path:
    return paths.log(WATCHDOG, newest_number(paths.logs, str(WATCHDOG)) + 1)


def _has_begun(start: Start) -> bool:
    """Whether the run is this one, and its program has been started, or the standby that it will be a fork of."""
    run = read_run(start.paths.run_json)
    if run is None or run.run != start.run:
        return False
    return any(
        isinstance(line.entry, Spawned)
        and (line.role == "standby" or (line.role == run.task and line.incarnation == run.incarnation))
        for line in read_journal(start.paths.journal)
    )

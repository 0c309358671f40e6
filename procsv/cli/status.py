"""`procsv status DIR`: show the state of a run.

Called by main.py. The command asks the run's watchdog. If the run is not active, or its watchdog
does not answer, the command reads the run's files. It takes no lock, disturbs nothing, and answers
within a second.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import UNSET

from procsv.base.encoding import decode_json, indent_json
from procsv.base.identity import TaskId, attempt_name
from procsv.base.outcome import NO_STEP, STEPS, FitPlace
from procsv.base.run.run_file import FINAL_STATES, RunFile
from procsv.base.system.output import make_console
from procsv.base.terminal import as_markup, make_table
from procsv.base.units import show_count, show_duration, show_size, show_time
from procsv.cli.directory import ask_watchdog, directory_argument, find_host, find_run
from procsv.ipc.messaging.watchdog_messages import Status, StatusRequest
from procsv.ipc.shm.heartbeat_file import HeartbeatReader
from procsv.ipc.shm.slot_header import scan_slots
from procsv.report.status_object import StatusObject, status_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

INTERRUPTED = "interrupted"  # the state of a run whose watchdog was killed before it recorded an end


@click.command("status")
@directory_argument()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(directory: str, as_json: bool) -> None:
    """Show the state of the run in DIR: steps, restarts, snapshots, and each process."""
    status = read_status(find_run(directory))
    if as_json:
        click.echo(indent_json(status))
    else:
        show_status(status)


def read_status(run: RunFile) -> dict[str, Any]:
    """Return the object that `--json` prints. `running` is true if a watchdog supervises the run
    now.
    """
    alive = run.is_active
    answer = ask_watchdog(run, StatusRequest()) if alive else None
    if isinstance(answer, Status):
        status: dict[str, Any] = decode_json(answer.json, dict)
        return status
    is_running = alive and run.ended_at is None
    found = status_of(run, running=is_running, processes=(), snapshots=None)
    if is_running:
        found = _fill_in_from_files(run, found)
    report = run.paths.crashes / f"{attempt_name(TaskId.parse(run.task), run.incarnation)}.txt"
    if run.gave_up and report.is_file():
        found = msgspec.structs.replace(found, crash_report=str(report))
    if not alive:
        is_over, host = run.state in FINAL_STATES, find_host(run)
        is_gone = not host and not run.paths.shm_dir.is_dir()  # no snapshot is in memory any more
        found = msgspec.structs.replace(
            found,
            next_restart_in=None,
            next_save_in=None,
            memory_step=NO_STEP if is_gone else found.memory_step,
            state=found.state if is_over or host else INTERRUPTED,
            elsewhere=host or UNSET,
            seen_until=UNSET if is_over else run.seen_at,
        )
    builtins: dict[str, Any] = msgspec.to_builtins(found)
    return builtins


def _fill_in_from_files(run: RunFile, found: StatusObject) -> StatusObject:
    """Replace what run.json lacks, or has only in an old version, by the heartbeat and the slots.

    This is for a watchdog that is alive but does not answer, for example after SIGSTOP.
    """
    reader = HeartbeatReader(run.paths.heartbeat(TaskId.parse(run.task), run.incarnation))
    beat = reader.read_heartbeat()
    reader.close()
    slots = (slot.step for slot in scan_slots(run.paths.shm_dir) if slot.run == run.run)
    found = msgspec.structs.replace(found, memory_step=max(slots, default=run.memory_step))
    if beat is None:
        return found
    step, fit, snapshots = max(run.step, beat.step), beat.fit or run.fit, beat.snapshots.as_status()
    return msgspec.structs.replace(found, step=step, fit=fit, snapshots=snapshots)


# -- for people ------------------------------------------------------------------------------------------------
def show_status(status: dict[str, Any]) -> None:
    from rich.table import Table

    console = make_console()
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(status).items():
        facts.add_row(name, as_markup(value))
    console.print(facts)
    if status.get("tasks"):
        console.print()
        console.print(task_table(status["tasks"], as_markup))
    if status["processes"]:
        names = ("role", "pid", "state", "phase", "up", "memory", "cpu")
        table = make_table(names, right=("pid", "up", "memory", "cpu"))
        for process in status["processes"]:
            table.add_row(*map(as_markup, process_row(process)))
        console.print()
        console.print(table)


def _facts(status: dict[str, Any]) -> dict[str, str]:
    total = f" of {show_step(status['steps_total'])}" if status.get("steps_total", 0) > 0 else ""
    saved = f"on disk {show_step(status['durable_step'])}   in memory {show_step(status['memory_step'])}"
    if status.get("mirror_host"):
        saved += f"   on {status['mirror_host']} {show_step(status['mirror_step'])}"
    steps = f"{show_step(status['step'])}{total}   {saved}"
    # What the program counts as a step, and whether it restores. An older watchdog sends none.
    habit = status.get("habit") or msgspec.to_builtins(STEPS)
    facts = {
        **_describe_state(status),
        "target": " ".join((status["target"], *status["args"])),
        "logdir": status["logdir"],
        **({"run files": f"{status['root']}/procsv"} if status.get("root") else {}),
        **(
            {"step": steps}
            if habit["unit"] == "step"
            else {"save": f"{steps}   (the program has no step counter, so its saves are counted)"}
        ),
        **({"fit": show_fit(status)} if status.get("fit") else {}),
    }
    restores = habit["restores"]
    if status.get("gave_up") and max(status["step"], status["durable_step"], status["memory_step"]) < 0:
        facts["saved"] = "nothing: the program failed before its first step"
    elif (protected := status.get("protected")) is not None:
        facts["protected"] = "yes" if protected else _unprotected(status["running"], restores)
    elif restores is None:
        facts["protected"] = "unknown: procsv has not seen whether the program restores what it saves"
    if status["snapshots"] is not None:
        facts["snapshots"] = _spacing(status["snapshots"])
    facts["attempt"] = f"{status['incarnation']}, restarted {show_count(status['restarts'], 'time')} in this launch"
    if status.get("generation", 1) > 1:
        facts["generation"] = f"{status['generation']} (rises when a gang restarts, or a parameter server is lost)"
    if status["no_progress_count"]:
        facts["attempt"] += f", {show_count(status['no_progress_count'], 'failure')} without progress"
    if (last := status["last_exit"]) is not None:
        at = f"at {habit['unit']} {last['step']}" if last["step"] >= 0 else "before its first step"
        facts["last exit"] = f"{last['cause']}: {last['evidence']}, {at}"
    if status["next_restart_in"] is not None:
        facts["next start"] = f"in {show_duration(status['next_restart_in'])}"
    if status["running"] and status.get("awaits_room"):
        facts["next start"] = "when there is room: the disk is full"
    if status["save_error"] is not None:
        again = status["next_save_in"]
        when = f"; next try in {show_duration(again)}" if status["running"] and again is not None else ""
        facts["not saved"] = status["save_error"] + when
    if (missing := status.get("ground_error")) is not None:  # directories, sockets or locks that somebody removed
        facts["missing"] = missing
    if status["exit_code"] is not None:
        facts["exit code"] = str(status["exit_code"])
    if status.get("gave_up"):
        facts["gave up"] = status["gave_up"]
    if report := status.get("crash_report"):
        facts["report"] = report
    if count := status.get("dropped_messages"):
        facts["dropped"] = f"{count} messages: garbled, out of date, from another run, or from unknown connections"
    if (memory := status.get("memory")) is not None:
        facts["memory"] = f"{show_size(memory['available'])} of {show_size(memory['total'])} free on this machine"
    goodput, of_launch = status["goodput"], status.get("launch_goodput")
    launch = f", of this launch {of_launch:.1%}" if of_launch not in (None, goodput) else ""
    return facts | {"goodput": f"{goodput:.1%}{launch}"}


def _describe_state(status: dict[str, Any]) -> dict[str, str]:
    """Say whether the run is active.

    If the run may be alive on another machine, also say where to check. If its watchdog was killed,
    also say when, and how to resume the run.
    """
    state = status["state"]
    if status["running"]:
        return {"state": state}
    if "seen_until" not in status:
        return {"state": f"{state} (not running)"}
    when = show_time(status["seen_until"])
    if host := status.get("elsewhere"):
        return {
            "state": f"{state} on {host}, as of {when}",
            "to check": f"run procsv status on {host}, where its watchdog was process {status['pid']}",
        }
    target = shlex.join((status["target"], *status["args"]))
    return {
        "state": f"{state} (not running)",
        "cut off": f"its watchdog (process {status['pid']}) was killed about {when}, or the machine went down",
        "resume": f"give the same command again: procsv launch … {target}",
    }


def _unprotected(is_running: bool, restores: bool | None) -> str:
    if restores is False:
        return "no: the program restored nothing of what was saved, so after a crash it starts from the beginning"
    return (
        "no: procsv is not saving the program's state, unless a child process has a session; a crash loses what the "
        "program does not save itself"
        if is_running
        else "no: it opened no session that procsv protects, except perhaps in a child process"
    )


def _spacing(snapshots: dict[str, Any]) -> str:
    every = f"every {show_duration(snapshots['interval'])}" if snapshots["interval"] else "only on request"
    return f"{every}, training waits {snapshots['mean_stall_ms']:.1f} ms for one ({snapshots['why']})"


def show_fit(status: dict[str, Any]) -> str:
    """Describe how far a Keras fit has progressed; "" without a fit."""
    fit = status.get("fit")
    return str(msgspec.convert(fit, FitPlace)) if fit else ""


def show_step(step: int) -> str:
    return str(step) if step >= 0 else "-"


def task_table(tasks: Sequence[dict[str, Any]], show_cell: Callable[[str], RenderableType]) -> Table:
    """Return a table with one row per task, and a host column if the run has several machines."""
    numbers, hosts = ("attempt", "restarts", "steps/s"), [task["host"] or "" for task in tasks]
    where = ("host",) if any(hosts) else ()
    table = make_table(("task", *where, "state", *numbers, "waits for", "last exit"), right=numbers)
    for task, host in zip(tasks, hosts, strict=True):
        name, *more = task_row(task)
        table.add_row(*map(show_cell, (name, *([host] if where else []), *more)))
    return table


def task_row(task: dict[str, Any]) -> tuple[str, ...]:
    rate, last = task["steps_per_s"], task["last_exit"]
    return (
        task["task"],
        task["state"],
        str(task["incarnation"]),
        str(task["restarts"]),
        "" if rate is None else f"{rate:.4g}",
        task["waits_for"] or "",
        "" if last is None else f"{last['cause']}: {last['evidence']}",
    )


def process_row(process: dict[str, Any]) -> tuple[str, ...]:
    if process["pid"] is None:
        return process["role"], "-", process["state"], "", "", "", ""
    return (
        process["role"],
        str(process["pid"]),
        process["state"],
        process["phase"],
        show_duration(process["uptime"]),
        show_size(process["rss"]),
        f"{process['cpu']:.0f} %",
    )

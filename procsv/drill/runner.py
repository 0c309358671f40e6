"""Run a drill: train once without faults and once with them, then compare both.

`procsv drill` uses it. It uses only commands that a user has. Like a scheduler, it repeats `procsv
launch` until the training is complete. findings.py judges the results.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from procsv.base import exit_codes
from procsv.base.cluster import EVALUATOR, PS, WORKER, role_of
from procsv.base.encoding import decode_json
from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import read_run
from procsv.base.system.processes import Child
from procsv.base.system.system_clock import SystemClock
from procsv.drill.findings import Findings, Trial, find_missing_tags, find_outcomes, find_skipped, judge_findings
from procsv.faults.plan import Plan, PlannedFault, aim_at_tasks
from procsv.ipc.messaging.start import safe_path
from procsv.report.reading import Story, read_story

BASELINE, DRILLED, AGAIN = "baseline", "drilled", "baseline-again"
LOOK_S = 0.5
LAUNCHES_MAX = 200  # per training: with a plan that kills every launch, the drill would otherwise never end
# A plan's faults may come close together on purpose. So the rules by which the watchdog gives up a program without
# progress are off.
RULES_OFF = ("--repeated-failures", "0", "--min-goodput", "0")

Say = Callable[[str], None]


class Course(msgspec.Struct, frozen=True):
    """What to drill, and how."""

    directory: Path
    target: str
    args: tuple[str, ...]
    options: tuple[str, ...]  # further options of `procsv launch`
    rtol: float  # the relative difference up to which the variables count as close


def run_drill(course: Course, plan: Plan | None, say: Say) -> Findings:
    """Train with and without faults, and return the findings. UserError if it cannot begin."""
    for name in (BASELINE, DRILLED, AGAIN):
        if (course.directory / name).exists():
            raise UserError(
                f"{course.directory / name} belongs to an earlier drill; remove it, or choose another --logdir"
            )
    say("1/2 training without faults")
    baseline = _train(course, BASELINE, Plan(), say)
    if not baseline.survived:
        return judge_findings(Findings(baseline, baseline, [], [], {}, {}, course.rtol))
    if plan is None:
        plan = default_plan(baseline.account.last_step, tuple(baseline.tasks))
    plan = aim_at_tasks(plan, [TaskId.parse(task) for task in baseline.tasks])
    say(f"2/2 training with {len(plan.faults)} faults" if len(plan.faults) != 1 else "2/2 training with a fault")
    drilled = _train(course, DRILLED, plan, say)
    say("comparing")
    outcomes, missed = find_outcomes(drilled.account, plan.faults, drilled.tasks)
    found = Findings(baseline, drilled, outcomes, missed, {}, {}, course.rtol)
    found.skipped = find_skipped(drilled.account)
    if drilled.survived:
        found.comparison = _compare(baseline.logdir, drilled.logdir, course.rtol)
        found.continuity = _continuity(baseline.logdir, drilled.logdir)
        if found.variables == "different":
            say("the variables differ; training without faults once more, to see whether that alone makes a difference")
            found.again = _train(course, AGAIN, Plan(), say)
            found.is_deterministic = bool(_compare(baseline.logdir, found.again.logdir, 0.0).get("is_identical"))
    return judge_findings(found)


# -- training ----------------------------------------------------------------------------------------------------
def _train(course: Course, name: str, plan: Plan, say: Say) -> Trial:
    """Run `procsv launch` until the training is complete, or has failed."""
    logdir = course.directory / name
    course.directory.mkdir(parents=True, exist_ok=True)
    options = list(course.options)
    if plan.faults:
        path = course.directory / "plan.toml"
        path.write_text(as_toml(plan), encoding="utf-8")
        options += ["--plan", str(path), *RULES_OFF]
    argv = [
        sys.executable,
        *safe_path(),
        "-m",
        "procsv",
        "launch",
        "--map-logdir",
        "--logdir",
        str(logdir),
        *options,
        course.target,
    ]
    output, codes = course.directory / f"{name}.out", list[int]()
    output.unlink(missing_ok=True)  # left by a drill that could not begin
    while len(codes) < LAUNCHES_MAX:
        codes.append(_launch([*argv, "--", *course.args], output, logdir, say))
        if codes[-1] >= 0 and codes[-1] != exit_codes.RESUMABLE and not _is_stopped(logdir):
            break  # complete, or failed; the loop repeats a launch that was killed or preempted
    story = _story(logdir, output)
    return Trial(str(logdir), tuple(codes), story.account, _tail(output), story.tasks)


def _launch(argv: list[str], output: Path, logdir: Path, say: Say) -> int:
    """Run one launch to its end; return its exit code, negative if a signal killed it."""
    step = -1

    def look() -> None:
        nonlocal step
        run = read_run(find_paths(logdir).run_json)
        if run is not None and run.step > step:
            step = run.step
            say(f"  step {step}")

    child = _start(argv, output)
    try:
        while not child.has_ended():
            select.select([child.pidfd], [], [], LOOK_S)
            look()
    except BaseException:
        child.signal(signal.SIGTERM)  # the launch saves and ends; a second Ctrl-C reaches it through the terminal
        select.select([child.pidfd], [], [])
        raise
    finally:
        ended = child.reap()
    return -ended.signal if ended.signal is not None else ended.code or 0


def _start(argv: list[str], output: Path) -> Child:
    """Start the launch in the drill's own terminal session, so that Ctrl-C reaches both."""
    with output.open("ab") as stream:
        return Child(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream))


def _is_stopped(logdir: Path) -> bool:
    run = read_run(find_paths(logdir).run_json)
    return run is not None and run.state == "stopped"


def _story(logdir: Path, output: Path) -> Story:
    try:
        return read_story(logdir, SystemClock())
    except UserError as error:
        raise UserError(f"the training could not be started; procsv launch said:\n{_tail(output)}") from error


def _tail(output: Path) -> str:
    return "\n".join(output.read_text(errors="replace").splitlines()[-20:])


def as_toml(plan: Plan) -> str:
    """Return the plan as the text of a file for --plan."""
    tables = "".join(f'\n[[fault]]\ndo = "{fault}"\n' for fault in plan.faults)
    return f"seed = {plan.seed}\n{tables}"


# -- comparing ---------------------------------------------------------------------------------------------------
def _compare(first: str, second: str, rtol: float) -> dict[str, Any]:
    return _ask_tool("procsv.services.checkpoint.tools.compare", first, second, repr(rtol))


def _continuity(first: str, second: str) -> dict[str, Any]:
    """Check the summaries of the second logdir, and add the tags that only the first has."""
    module = "procsv.services.summary.continuity"
    wanted, found = _ask_tool(module, first), _ask_tool(module, second)
    return {**found, "missing_tags": find_missing_tags(wanted.get("tags", ()), found.get("tags", ()))}


def _ask_tool(module: str, *args: str) -> dict[str, Any]:
    """Run one of the services' tools in a process of its own and return its answer.

    Returns {} if the tool cannot read what it is to examine. UserError if the tool fails.
    """
    argv = [sys.executable, *safe_path(), "-m", module, *args]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environment)
    if done.returncode == 1:
        return {}
    if done.returncode:
        complaint = done.stderr.decode(errors="replace")
        raise UserError(f"{module} failed: {complaint[-2000:]}", exit_code=exit_codes.GAVE_UP)
    answer: dict[str, Any] = decode_json(done.stdout, dict)
    return answer


# -- the default plan: the faults that long runs meet most often, spread over the training ----------------------------
STEPS_MIN = 20

_SPREAD: tuple[tuple[float, PlannedFault], ...] = (
    (0.15, PlannedFault("trainer", "kill")),
    (0.25, PlannedFault("checkpoint", "kill")),
    (0.35, PlannedFault("trainer", "raise")),
    (0.45, PlannedFault("summary", "kill")),
    (0.55, PlannedFault("trainer", "preempt", 30.0)),
    (0.65, PlannedFault("trainer", "segfault")),
    (0.75, PlannedFault("trainer", "stop", 2.0)),
    (0.85, PlannedFault("watchdog", "kill")),
)
# With several tasks, the plan also kills one task of each kind. "trainer" above then means the task whose state is saved.
_OF_TASKS: tuple[tuple[float, str], ...] = ((0.2, WORKER), (0.5, PS), (0.7, EVALUATOR))


def default_plan(steps: int, tasks: Sequence[str] = ()) -> Plan:
    """Return a plan for training that lasts `steps` global steps; UserError if they are too few.

    `tasks`: the names of the tasks, beginning with the task whose state is saved. It is empty for a
    single trainer.
    """
    _check_length(steps)
    spread = list(_SPREAD)
    for share, role in _OF_TASKS:
        last = next((task for task in reversed(tasks[1:]) if role_of(task) == role), None)
        spread += [(share, PlannedFault(last, "kill"))] if last is not None else []
    return _at_steps(spread, steps)


def _check_length(steps: int) -> None:
    if steps < STEPS_MIN:
        raise UserError(
            f"the training ends after {max(steps, 0)} global steps; a drill needs at least {STEPS_MIN}. "
            "Let it train longer, or give the faults with --plan"
        )


def _at_steps(spread: Sequence[tuple[float, PlannedFault]], steps: int) -> Plan:
    in_order = sorted(spread, key=lambda one: one[0])
    return Plan(tuple(msgspec.structs.replace(fault, at_step=round(steps * share)) for share, fault in in_order))

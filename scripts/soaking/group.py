"""Run several healthy tasks with short limits, for as long as you like: none may be ended or
restarted.

There are a parameter server that holds nothing, an evaluator that takes a minute or more for each
evaluation, a worker whose steps take seconds, and a chief that sometimes stands still for as long
as its step limit allows.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from scripts.soaking.watch import find_live
from tests.support.launched import Launched, launched, procsv
from tests.support.replicas import JOIN, SERVER, TASK, monitored

STEP_LIMIT_S = 20  # per step; the worker's step takes a quarter of it, and a pause of the chief half
OPTIONS = ("--workers", "2", "--ps", "2", "--evaluators", "1", "--drop-in", "--hang-timeout", str(STEP_LIMIT_S))
TASKS = ("chief", "worker.0", "worker.1", "ps.0", "ps.1", "evaluator.0")
LOOK_S = 5.0

PROGRAM = (
    TASK
    + """
import time
while role == "evaluator":
    tf.train.latest_checkpoint(os.environ["PROCSV_LOGDIR"])
    pause.wait(75.0)
"""
    + SERVER
    + JOIN
    + """
with tf.device("/job:ps/task:0"):
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable("weights", [100000], initializer=tf.zeros_initializer(), use_resource=True)
    train = tf.group(tf.assign_add(weights, tf.ones([100000])), tf.assign_add(step, 1))
stood_s = time.monotonic()
"""
    + monitored(
        f"""
session.run(train)
pause.wait({STEP_LIMIT_S / 4} if (role, index) == ("worker", 1) else 0.05)
if is_chief and time.monotonic() > stood_s + 60.0:
    pause.wait({STEP_LIMIT_S / 2})
    stood_s = time.monotonic()
""",
        save_checkpoint_secs=30,
    )
)


def soak_by_group(place: Path, minutes: float) -> list[str]:
    """Run it for that long; return what was wrong."""
    until_s, pause = time.monotonic() + minutes * 60, threading.Event()
    script = place.with_suffix(".py")
    script.write_text(PROGRAM)
    with launched(place, *OPTIONS, str(script), standby=None) as run:
        for task in ("chief", "worker.0", "worker.1"):
            run.wait_event("ready", 1, task)
        wrong = list[str]()
        while not wrong and time.monotonic() < until_s:
            pause.wait(min(LOOK_S, max(0.0, until_s - time.monotonic())))
            wrong = _find_wrong(run)
        steps = run.step()
        procsv("stop", str(place))
        code = run.wait_end()
    print(f"{minutes:g} minutes, {steps} steps, {len(run.events('checkpoint_durable'))} checkpoints", flush=True)
    return wrong + ([] if code == 75 else [f"exit code {code} of a run that was stopped"]) + find_live(place)


def _find_wrong(run: Launched) -> list[str]:
    wrong = [
        f"{entry['role']} has ended: {entry['cause']}: {entry['evidence']}"
        for entry in run.events("exited")
        if entry["role"] in TASKS
    ]
    wrong += [f"{entry['role']} is taken for hanging" for entry in run.events("hang_detected")]
    wrong += [
        f"{task} was started {len(run.events('spawned', task))} times"
        for task in TASKS
        if len(run.events("spawned", task)) != 1
    ]
    return wrong

"""Programs of a chief, workers and parameter servers that train between graphs, and ways to read
their runs.

A program is made of the pieces TASK, SERVER, JOIN and a session, with its own code between them.
`own` is the task's device.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from procsv.base.identity import TaskId
from procsv.base.run.paths import find_paths
from procsv.ipc.shm.slot_header import scan_slots
from procsv.ipc.shm.slot_state import SlotInfo
from tests.support.launched import Launched

TASK = """
import json, os, sys, threading
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
config = json.loads(os.environ["TF_CONFIG"])
role, index, pause = config["task"]["type"], config["task"]["index"], threading.Event()
own, is_chief = f"/job:{role}/task:{index}", role == "chief"
"""
SERVER = """
cluster = tf.train.ClusterSpec(config["cluster"])
server = tf.train.Server(cluster, job_name=role, task_index=index)
"""
# A server whose calls a test blocks: each blocked call takes one of the threads that run steps, by
# default one a processor.
ROOMY_SERVER = SERVER.replace(
    "task_index=index", "task_index=index, config=tf.ConfigProto(inter_op_parallelism_threads=16)"
)
JOIN = """
if role == "ps":
    server.join()
"""
MODEL = """
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=own)):
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable("weights", [1000], initializer=tf.zeros_initializer(), use_resource=True)
    train = tf.group(tf.assign_add(weights, tf.ones([1000])), tf.assign_add(step, 1))
"""
STEP = "session.run(train)\npause.wait(0.05)\n"


def monitored(loop: str = STEP, *, save_checkpoint_secs: int = 600, hooks: str = "[]") -> str:
    """Return the session in which all tasks but the servers train. `loop` is what each does until
    it should stop.
    """
    return f"""
with tf.train.MonitoredTrainingSession(
    server.target,
    is_chief=is_chief,
    checkpoint_dir=os.environ["PROCSV_LOGDIR"],
    save_checkpoint_secs={save_checkpoint_secs},
    hooks={hooks},
    config=tf.ConfigProto(device_filters=["/job:ps", own]),
) as session:
    while not session.should_stop():
{textwrap.indent(textwrap.dedent(loop).strip(), " " * 8)}
"""


def text_of(run: Launched, task: str) -> str:
    """Return what all attempts of `task` have printed."""
    return "\n".join(log.read_text() for log in sorted((run.logdir / "procsv" / "logs").glob(f"{task}.*.log")))


def run_json(run: Launched) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((run.logdir / "procsv" / "run.json").read_text())
    return read


def memory_step(run: Launched) -> int:
    """Return the step of the newest snapshot."""
    return int(run_json(run)["memory_step"])


def wait_for_memory(run: Launched, step: int) -> int:
    """Wait for a snapshot later than `step`. Return its step."""
    run.wait_for(f"a snapshot after step {step}", lambda: memory_step(run) > max(0, step))
    return memory_step(run)


def wait_for_steps(run: Launched) -> int:
    """Wait for a snapshot of a step trained from now on. Return its step."""
    return wait_for_memory(run, run.step())


CHIEF = TaskId("chief")


def newest_slot(run: Launched) -> SlotInfo:
    """Return the newest snapshot in memory."""
    return next(info for info in scan_slots(find_paths(run.logdir).shm_dir) if info.task == CHIEF)


# A server started with `waits` holds each copy while there is a file `held`, and prints so.
HELD_COPY = """
if role == "ps" and "waits" in sys.argv:
    from tensorflow.python.ops import script_ops
    copy = script_ops._py_funcs._funcs["procsv.copy"]
    def wait(order):
        if os.path.exists("held"):
            print("holds a copy", flush=True)
        while os.path.exists("held"):
            pause.wait(0.01)
        return copy(order)
    script_ops._py_funcs._funcs["procsv.copy"] = wait
"""

IN_STEP_S = 0.4  # longer than a signalled task waits for its watchdog's message
# A worker's step takes that long and counts at its end: a signalled worker ends its step after the
# chief could have saved.
IN_STEP = (
    TASK
    + SERVER
    + JOIN
    + f"""
def hold():
    pause.wait(0.0 if is_chief else {IN_STEP_S})
    return True

with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=own)):
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable("weights", [1000], initializer=tf.zeros_initializer(), use_resource=True)
    with tf.device(own):
        held = tf.py_func(hold, [], tf.bool)
    with tf.control_dependencies([held]):
        added = tf.assign_add(weights, tf.ones([1000]))
    with tf.control_dependencies([added]):
        train = tf.assign_add(step, 1)
"""
    + monitored("print('trained', session.run(train), flush=True)\npause.wait(0.05)")
)


def last_trained(logdir: Path) -> int:
    """Return the newest step that any task of IN_STEP has trained."""
    logs = "\n".join(log.read_text() for log in (logdir / "procsv" / "logs").glob("*.log"))
    return max(map(int, re.findall(r"^trained (\d+)$", logs, re.MULTILINE)))

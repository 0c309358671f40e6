"""Make one measurement in a process of its own: train for some seconds under one arm, and report
the result as JSON.

    python -m scripts.benchmarks.trial '{"arm": "procsv", …}'       the fields of Trial

Started by processes.py. The last line of standard output is the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from scripts.benchmarks.arms import Loop, make_config, open_hooked, open_session
from scripts.benchmarks.model import Model, Session, build_model, judge
from scripts.benchmarks.recording import Recording, record_journal, record_savers, record_snapshots
from scripts.benchmarks.settings import Trial

tf1 = tf.compat.v1

WARM_UP_STEPS = 5  # not measured, while allocators and thread pools settle
MEMCPY_REPEATS = 7
CACHES_BYTES = 256 << 20  # larger than all caches
CALLS_PER_BLOCK = 250


def main(trial: Trial) -> dict[str, Any]:
    tf1.disable_eager_execution()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    with tf.Graph().as_default():
        model = build_model(trial.mb, trial.variables, trial.kind, trial.work)
        return _calls(trial, model) if trial.what == "calls" else _train(trial, model)


def _train(trial: Trial, model: Model) -> dict[str, Any]:
    recording = Recording()
    is_ours = trial.arm in ("procsv", "our_monitored")
    if is_ours:
        record_snapshots(recording)
    else:
        record_savers(recording, trial.sync)
    steps: list[tuple[float, float]] = []
    with open_session(trial.arm, trial.logdir, trial.save_s, between=trial.between) as loop:
        session = loop.session
        for _ in range(WARM_UP_STEPS):
            session.run(model.train)
        spent_s = cpu_seconds() if trial.cpu else 0.0
        end_s = time.monotonic() + trial.seconds
        while (begun_s := time.monotonic()) < end_s:
            session.run(model.train)
            loop.after_step()
            steps.append((begun_s, time.monotonic()))
            if trial.pause_s:
                threading.Event().wait(trial.pause_s)
        if trial.cpu:
            spent_s = cpu_seconds() - spent_s
    if is_ours:
        record_journal(recording, Path(trial.logdir))
    result: dict[str, Any] = {"steps": steps, "cpu_s": spent_s, **dataclasses.asdict(recording)}
    if trial.check:
        paths = [str(index)[: -len(".index")] for index in Path(trial.logdir).glob("model.ckpt-*.index")]
        judged = [judge(path) for path in paths]
        result["checked"] = len(judged)
        result["torn"], result["misnamed"] = sum(torn for torn, _ in judged), sum(misnamed for _, misnamed in judged)
    if trial.copy:
        result["memcpy_s"] = measure_memcpy(int(trial.mb * 1e6))
    return result


def cpu_seconds() -> float:
    """Return the processor time of this process and its descendants."""
    me = psutil.Process()
    return sum(_cpu_seconds_of(each.pid) for each in [me, *me.children(recursive=True)])


def _cpu_seconds_of(pid: int) -> float:
    """Return the time to the nanosecond: /proc, and so psutil, counts hundredths of a second, as
    much as a small checkpoint.
    """
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the clock id that clock_getcpuclockid returns, which Python lacks
    except OSError:
        return 0.0  # it has just ended


def measure_memcpy(size: int) -> float:
    """Return the median seconds to copy `size` bytes with one thread, between memory that was
    touched before.

    The memory is in no cache, as a step leaves it. 20 MB that were copied just before are copied in
    two thirds of the time.
    """
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    other = np.zeros(CACHES_BYTES, np.uint8)
    seconds = []
    for _ in range(MEMCPY_REPEATS):
        other += 1
        begun_s = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - begun_s)
    return float(np.median(seconds))


def _calls(trial: Trial, model: Model) -> dict[str, Any]:
    """Return seconds per call of the arm's session and of a bare session on the same graph, in
    turns; and the difference.
    """
    if trial.hooks is None:
        opened = open_session(trial.arm, trial.logdir, trial.save_s, is_trivial=True)
    else:
        opened = open_hooked(trial.arm, trial.logdir, trial.hooks)
    with opened as loop, _bare_beside(loop) as bare:
        runs = (loop.session.run, bare.run)
        for run in runs:
            _time_calls(run, model.train)  # not measured, because the first calls build executors
        pairs = []
        end_s = time.monotonic() + trial.seconds
        while time.monotonic() < end_s:
            pairs.append([_time_calls(run, model.train) for run in runs])
    ours, bares = np.median(pairs, axis=0)
    more = np.median([our - their for our, their in pairs])  # in pairs, because clock speeds and load change
    return {"arm": float(ours), "bare": float(bares), "more": float(more), "calls": len(pairs) * CALLS_PER_BLOCK}


@contextlib.contextmanager
def _bare_beside(loop: Loop) -> Iterator[Session]:
    """Yield a tf.Session on the same graph, with its variables set."""
    with tf1.Session(graph=loop.session.graph, config=make_config(is_trivial=True)) as bare:
        for variable in tf1.global_variables():
            bare.run(variable.initializer)
        yield bare


def _time_calls(run: Callable[[Any], Any], fetch: object) -> float:
    """Return the median seconds of a call."""
    clock, seconds = time.perf_counter, []
    for _ in range(CALLS_PER_BLOCK):
        begun_s = clock()
        run(fetch)
        seconds.append(clock() - begun_s)
    return float(np.median(seconds))


if __name__ == "__main__":
    found = main(Trial(**json.loads(sys.argv[1])))
    print("\n" + json.dumps(found), flush=True)

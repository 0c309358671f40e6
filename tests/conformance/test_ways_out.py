"""A process ends by itself after every way out of a managed session, in every TensorFlow mode."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import pytest
import tensorflow as tf

from tests.support.launched import NEWS_S_MAX, background

pytestmark = pytest.mark.fault
ENDS_S_MAX = 300.0  # far below an hour's grace, which TensorFlow's class spends on a blocked thread

PROGRAM = """
import json, signal, sys, threading, time
import tensorflow as tf
import procsv

signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background inherits one that is ignored

tf1 = tf.compat.v1
{mode}


class Mishap(Exception):
    pass


def supervised(logdir, **options):
    step = tf1.train.get_or_create_global_step()
    logdir = logdir and f"{{sys.argv[1]}}/{{logdir}}"
    return procsv.Supervisor(logdir=logdir, stop_grace_secs=3600, **options), step


def fail():
    raise Mishap


def queue_runners_that_have_not_ended():
    queue = tf.queue.FIFOQueue(2, [tf.float32], shapes=[[]])
    tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(1.0)] * 2))
    get, full = queue.dequeue(), queue.size()
    supervisor, _ = supervised(None)
    with supervisor.managed_session() as session:
        session.run(get)
        while session.run(full) < 2:
            pass


def end_of_a_queue():
    numbers = tf1.train.limit_epochs(tf.constant([1.0]), num_epochs=3)
    queue = tf.queue.FIFOQueue(4, [tf.float32], shapes=[[1]])
    tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [queue.enqueue(numbers)]))
    get = queue.dequeue()
    supervisor, _ = supervised(None)
    with supervisor.managed_session() as session:
        while True:
            session.run(get)


def end_of_a_dataset():
    batch = tf1.data.make_one_shot_iterator(tf1.data.Dataset.range(50)).get_next()
    with tf.control_dependencies([batch]):
        train = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
    supervisor, _ = supervised("dataset")
    with supervisor.managed_session() as session:
        while not supervisor.should_stop():
            session.run(train)


def a_service_that_raises():
    supervisor, step = supervised(None)
    with supervisor.managed_session() as session:
        supervisor.loop(0.01, fail)
        while not supervisor.should_stop():
            session.run(step)


def the_program_raises():
    supervisor, step = supervised(None)
    with supervisor.managed_session() as session:
        session.run(step)
        fail()


def a_blocked_thread():
    get = tf.queue.FIFOQueue(1, [tf.float32]).dequeue()
    supervisor, step = supervised(None)
    with supervisor.managed_session() as session:
        supervisor.loop(None, session.run, args=(get,))
        session.run(step)


def an_interrupt():
    train = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
    supervisor, _ = supervised("interrupt")
    with supervisor.managed_session() as session:
        session.run(train)
        print(json.dumps(["waits for the interrupt"]), flush=True)
        while True:
            session.run(train)
            threading.Event().wait(0.05)


for way in (
    queue_runners_that_have_not_ended, end_of_a_queue, end_of_a_dataset, a_service_that_raises, the_program_raises,
    a_blocked_thread, an_interrupt,
):
    raised, begun_s = "", time.monotonic()
    with tf.Graph().as_default():
        try:
            way()
        except Mishap as error:
            raised = type(error).__name__
    print(json.dumps([way.__name__, raised, time.monotonic() - begun_s]), flush=True)
"""
MODES = {
    "v1": "tf1.disable_v2_behavior()",
    "no eager": "tf1.disable_eager_execution()",
    "plain": "",
}


class Program(NamedTuple):
    process: subprocess.Popen[str]
    output: IO[str]
    errors: Path

    def said(self) -> list[object]:
        """Return the next line."""
        line = self.output.readline()
        assert line, self.errors.read_text()
        said = json.loads(line)
        assert isinstance(said, list)
        return said


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[dict[str, Program]]:
    """Start one process for each mode, all at once."""
    with contextlib.ExitStack() as stack:
        started = {}
        for mode, switch in MODES.items():
            directory = tmp_path / mode
            directory.mkdir()
            (directory / "program.py").write_text(PROGRAM.format(mode=switch))
            reader, writer = os.pipe()
            output = stack.enter_context(os.fdopen(reader))
            with os.fdopen(writer, "w") as end, (directory / "errors").open("w") as errors:
                process = stack.enter_context(
                    background(directory / "program.py", str(directory), output=end, errors=errors)
                )
            started[mode] = Program(process, output, directory / "errors")
        yield started


@pytest.mark.long
def test_each_process_ends_by_itself_with_its_error_and_an_interrupt_ends_it(
    tmp_path: Path, programs: dict[str, Program]
) -> None:
    for mode, program in programs.items():
        results = [program.said() for _ in range(6)]
        assert [way[:2] for way in results] == [
            ["queue_runners_that_have_not_ended", ""],
            ["end_of_a_queue", ""],
            ["end_of_a_dataset", ""],
            ["a_service_that_raises", "Mishap"],
            ["the_program_raises", "Mishap"],
            ["a_blocked_thread", ""],
        ]
        assert all(isinstance(seconds, float) and seconds < ENDS_S_MAX for _, _, seconds in results)
        assert program.said() == ["waits for the interrupt"]
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(NEWS_S_MAX) == -signal.SIGINT
        assert "KeyboardInterrupt" in program.errors.read_text()
        assert tf.train.load_checkpoint(str(tmp_path / mode / "dataset")).get_tensor("global_step") == 50
        assert tf.train.load_checkpoint(str(tmp_path / mode / "interrupt")).get_tensor("global_step") > 0

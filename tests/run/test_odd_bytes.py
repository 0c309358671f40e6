"""A run works with a logdir and an argument whose bytes are not UTF-8, and with very many arguments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.launched import Launched, launched, procsv

pytestmark = pytest.mark.fault

LATIN = os.fsdecode(b"caf\xe9")
PROGRAM = """
import sys
print("arguments", ascii(sys.argv[1:]), flush=True)

from tests.support.numpy_training import main
main(10**6, 0.01, 1)
"""


def start_argument(run: Launched) -> str:
    return next(line for line in run.said().splitlines() if line.startswith("arguments"))


def test_a_run_with_bytes_that_are_not_utf_8_saves_resumes_from_memory_is_found_and_stops(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    logdir = tmp_path / f"run-{LATIN}"
    with launched(logdir, "train.py", LATIN, cwd=tmp_path) as run:
        run.wait_event("checkpoint_durable")
        run.wait_for("a snapshot", lambda: run.ask_status()["memory_step"] > 0)
        assert start_argument(run) == f"arguments {[LATIN]!a}"
        run.kill("trainer")
        assert run.wait_event("recovered", 2)[1]["source"] == "memory"
        shown = procsv("status", str(logdir), "--json")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert procsv("ls", str(tmp_path)).returncode == 0
        stopped = procsv("stop", str(logdir))
        assert (stopped.returncode, stopped.stderr) == (0, ""), stopped.stdout
        assert run.wait_end() == 75
        step = run.events("checkpoint_durable")[-1]["step"]
    with launched(logdir, "train.py", LATIN, cwd=tmp_path) as again:
        assert again.wait_event("recovered", 3)[2]["step"] >= step
        page = tmp_path / "page.html"
        for words in (
            ("report",),
            ("report", "--html", str(page)),
            ("report", "--html", "-"),
            ("checkpoints",),
            ("logs",),
        ):
            done = procsv(words[0], str(logdir), *words[1:])
            assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        assert r"run-caf\udce9" in page.read_text()


MANY = """
import sys
print("arguments", len(sys.argv) - 1, flush=True)

from tests.support.numpy_training import main
main(10**6, 0.01, 1)
"""


def test_a_run_with_more_arguments_than_fit_into_one_variable_begins_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MANY)
    many = [f"data/part-{number:05}" for number in range(12_000)]
    for launch in (1, 2):
        with launched(tmp_path / "run", "train.py", *many, cwd=tmp_path) as run:
            run.wait_event("recovered", launch)
            assert "arguments 12000" in run.said()
            assert procsv("stop", str(run.logdir)).returncode == 0
            assert run.wait_end() == 75


FIT = """
import keras, numpy as np, time
from tests.support.standing import stand_at
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
def pause(batch, logs):
    time.sleep(0.01)
    stand_at(int(model.optimizer.iterations))
slowly = keras.callbacks.LambdaCallback(on_train_batch_end=pause)
model.fit(x, x[:, :1], batch_size=4, epochs=30, verbose=0, callbacks=[slowly])
print("ended", int(model.optimizer.iterations), flush=True)
"""


@pytest.mark.long
def test_a_fit_in_such_a_directory_resumes_from_what_is_on_disk(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FIT)
    logdir = tmp_path / f"run-{LATIN}"
    with launched(logdir, "--drop-in", "train.py", cwd=tmp_path, STANDS_AT="100") as run:
        run.wait_step(20)
        assert procsv("stop", str(logdir)).returncode == 0
        saved = run.events("checkpoint_durable")[-1]["step"]
    with launched(logdir, "--drop-in", "train.py", cwd=tmp_path) as again:
        assert again.wait_end() == 0
        recovered = again.events("recovered")[-1]
    assert (recovered["source"], recovered["step"]) == ("checkpoint", saved)
    assert "ended 480" in again.said()

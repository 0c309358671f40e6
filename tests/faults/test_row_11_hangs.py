"""Rows 10 and 11: a hung trainer is found, its stacks are dumped, and training goes on without it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from procsv.ipc.messaging.launch_settings import Range
from tests.support.launched import launched, settings_text

pytestmark = pytest.mark.fault

PROGRAM = """
import ctypes, os, signal, sys, threading, time
from tests.support.numpy_training import training

incarnation = int(os.environ["PROCSV_INCARNATION"])


def spins_with_the_gil():
    sys.setswitchinterval(1e6)
    while True:
        pass


def calls_c_for_ever():
    reader, _ = os.pipe()
    ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)  # PyDLL keeps the GIL


def deadlocks():
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def other():
        with second:
            both.wait()
            first.acquire()

    threading.Thread(target=other, daemon=True).start()
    with first:
        both.wait()
        second.acquire()


def freezes():
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)  # woken to die, it may come a little further


HANGS = [spins_with_the_gil, calls_c_for_ever, deadlocks, freezes]

with training(save_s=60) as model:
    while not model.should_stop() and model.step < 100 * incarnation:
        model.train()
        time.sleep(0.01)
    if incarnation <= len(HANGS):
        HANGS[incarnation - 1]()
"""


@pytest.mark.long
def test_row_11_and_row_10_every_kind_of_hang_is_found_and_its_frame_is_named(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    settings = settings_text(hang_timeout_s=3.0, hang_abort_s=0.3, backoff=Range(0.1, 0.1), snapshot_s=0.3)
    launcher = [sys.executable, str(Path(__file__).with_name("launch.py"))]
    with launched(tmp_path / "logdir", settings, str(program), launcher=launcher) as run:
        for number in range(1, 5):
            run.wait_event("hang_detected", number)  # each event has its own deadline
        assert run.wait_end() == 0
    found = run.events("hang_detected")
    assert [entry["phase"] for entry in found] == ["step"] * 4
    for number, entry in enumerate(found):
        assert 100 * number < entry["step"] <= 100 * (number + 1)  # as last read: a held GIL blocks every reader
    assert all(3.0 <= entry["seconds"] < 30.0 for entry in found)
    exits = [entry for entry in run.events("exited") if entry["role"] == "trainer"]
    assert [entry["cause"] for entry in exits] == ["hang"] * 4 + ["completed"]
    names = ("spins_with_the_gil", "calls_c_for_ever", "deadlocks", "freezes")
    for incarnation, (entry, name) in enumerate(zip(exits, names, strict=False), start=1):
        # No SIGKILL was needed; dumping all stacks may crash the process.
        assert entry["signal"] in (signal.SIGABRT.name, signal.SIGSEGV.name)
        assert f"in {name} ({program}:" in entry["evidence"], entry
        assert ("SIGSTOP" in entry["evidence"]) == (name == "freezes")
        report = json.loads((run.logdir / "procsv" / "crashes" / f"{incarnation}.json").read_text())
        assert f"in {name}" in report["stacks"]
        text = (run.logdir / "procsv" / "crashes" / f"{incarnation}.txt").read_text()
        assert text.startswith(f"trainer {incarnation} (pid ")
        assert "hung: " in text.splitlines()[0]
        assert f"in {name}" in text
        assert "\nthe stack" in text
    # In sequence: each trainer had its logdir to itself.
    assert [entry["incarnation"] for entry in run.events("ready")] == [1, 2, 3, 4, 5]

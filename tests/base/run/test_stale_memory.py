"""Shared memory that killed launches have left goes with the next launch, and none that anybody may come back for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from procsv.base.run.stale_memory import COPY_S_MAX, hold_memory, sweep_memory
from procsv.base.system.system_clock import SystemClock

MINE = f"procsv-{os.getuid()}-0123456789abcdef"
NOW_S = 1_900_000_000.0
KILLED = """
import os, signal, sys
from pathlib import Path
from procsv.base.run.stale_memory import hold_memory
from procsv.base.system.system_clock import SystemClock
hold_memory(Path(sys.argv[1]), SystemClock(), print)
os.kill(os.getpid(), signal.SIGKILL)
"""


def make(directory: Path, *names: str, age_s: float = 0.0) -> Path:
    directory.mkdir()
    for name in names:
        (directory / name).write_text("")
    for path in (*directory.iterdir(), directory):
        os.utime(path, (NOW_S - age_s, NOW_S - age_s))
    return directory


def test_the_memory_of_a_killed_launch_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    dead, alive = tmp_path / f"{MINE}-shm", tmp_path / f"procsv-{os.getuid()}-fedcba9876543210-shm"
    subprocess.run([sys.executable, "-c", KILLED, str(dead)], check=False)
    held = hold_memory(alive, SystemClock(), lambda _: None)
    for directory in (dead, alive):
        (directory / "slot.1.0").write_text("")

    sweep_memory(tmp_path, NOW_S)

    assert not dead.exists()
    assert {path.name for path in alive.iterdir()} == {"launch.lock", "slot.1.0"}
    held.release()


def test_the_next_launch_in_a_place_has_its_memory_whoever_sweeps(tmp_path: Path) -> None:
    place = tmp_path / f"{MINE}-shm"
    subprocess.run([sys.executable, "-c", KILLED, str(place)], check=False)

    held = hold_memory(place, SystemClock(), lambda _: None)
    sweep_memory(tmp_path, NOW_S)

    assert held.is_in_place()
    held.release()


def test_what_a_run_has_in_memory_and_what_is_in_the_making_or_no_directory_stays(tmp_path: Path) -> None:
    run = make(tmp_path / MINE, "slot.1.0", age_s=10 * COPY_S_MAX)
    making = make(tmp_path / f"{MINE}-shm", age_s=10 * COPY_S_MAX)
    elsewhere = make(tmp_path / "elsewhere", "launch.lock")
    (tmp_path / f"procsv-{os.getuid()}-link-shm").symlink_to(elsewhere)

    sweep_memory(tmp_path, NOW_S)

    assert (run / "slot.1.0").exists()
    assert making.exists()
    assert (elsewhere / "launch.lock").exists()


def test_a_copy_that_nobody_has_come_for_in_a_week_goes_and_a_later_one_stays(tmp_path: Path) -> None:
    old = make(tmp_path / f"{MINE}-mirror-00000000", "slot.1.0", ".slot.2.0.new", age_s=COPY_S_MAX + 1)
    new = make(tmp_path / f"{MINE}-mirror-11111111", "slot.1.0", age_s=COPY_S_MAX - 1)

    sweep_memory(tmp_path, NOW_S)

    assert not old.exists()
    assert (new / "slot.1.0").exists()


def test_what_is_not_ours_in_such_a_directory_stays_and_the_directory_with_it(tmp_path: Path) -> None:
    place = tmp_path / f"{MINE}-shm"
    subprocess.run([sys.executable, "-c", KILLED, str(place)], check=False)
    (place / "mine.txt").write_text("")

    sweep_memory(tmp_path, NOW_S)

    assert [path.name for path in place.iterdir()] == ["mine.txt"]

"""`procsv logs` shows a run's last lines, attempts, roles and the end of each attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import pytest

from procsv.base.identity import CHECKPOINT, TRAINER
from procsv.base.run.paths import find_paths
from procsv.ipc.messaging.launch_settings import Range
from tests.support.launched import NEWS_S_MAX, NOT_SAVED, environment, procsv
from tests.watchdog.test_main import Run, launched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.fault

COUNTS = """
import os, signal
attempt = os.environ["PROCSV_INCARNATION"]
for number in range(5):
    print(f"line {number} of {attempt}", flush=True)
print("begun", flush=True)
signal.pause()
"""


@contextmanager
def restarted_once(tmp_path: Path, **settings: Any) -> Iterator[Run]:
    with launched(tmp_path, COUNTS, backoff=Range(0.05, 1.0), **settings) as run:
        run.begun()
        os.kill(run.pid("trainer"), 9)
        run.begun(2)
        yield run


def logs(run: Run, *options: str) -> list[str]:
    said = procsv("logs", str(run.logdir), *options)
    assert said.returncode == 0, said.stderr
    return said.stdout.splitlines()


@contextmanager
def follower(run: Run, *options: str) -> Iterator[IO[str]]:
    """Return what `procsv logs -f` shows until the test ends the run."""
    argv = [sys.executable, "-m", "procsv", "logs", str(run.logdir), "-f", *options]
    with subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout
            assert process.wait(NEWS_S_MAX) == 0
        finally:
            process.kill()


def test_logs_shows_last_lines_one_attempt_or_all_roles_and_the_end_of_each_attempt(tmp_path: Path) -> None:
    with restarted_once(tmp_path) as run:
        assert logs(run, "-n", "2") == ["line 4 of 2", "begun"]
        assert logs(run, "-n", "0") == []
        assert logs(run, "--attempt", "1", "-n", "3") == ["line 3 of 1", "line 4 of 1", "begun"]
        both = logs(run, "--since", "1hour")
        assert [line for line in both if not line.startswith("──")] == [
            *(f"line {number} of 1" for number in range(5)),
            "begun",
            *(f"line {number} of 2" for number in range(5)),
            "begun",
        ]
        assert both[0].startswith("── trainer 1, ")
        assert "trainer 1 was killed by SIGKILL" in both[7]
        assert "── trainer 2, " in both[7]
        everything = logs(run, "--all")
        assert "trainer    │ line 0 of 2" in everything
        assert {line.split()[0] for line in everything if "│" in line} <= {"trainer", "checkpoint", "summary"}
        assert any(line.startswith("── checkpoint 1, ") for line in everything)

        missing = procsv("logs", str(run.logdir), "--attempt", "7")
        assert (missing.returncode, "there are: 1, 2" in missing.stderr) == (2, True)
        run.process.send_signal(15)
        assert run.end() in NOT_SAVED


def test_all_logs_are_shown_whole_one_after_another_under_headings(tmp_path: Path) -> None:
    with restarted_once(tmp_path) as run:
        service = find_paths(run.logdir).log(CHECKPOINT, 1)
        with service.open("a") as file:
            file.write("older\nnewer\nnewest\n")
        lines = logs(run, "--all", "--since", "1h")
        headings = [line.split(",")[0] for line in lines if line.startswith("──")]
        assert headings[:1] == ["── checkpoint 1"], "roles come by their names"
        assert headings[-2] == "── trainer 1", "attempts by their numbers"
        assert headings[-1].startswith("── trainer 1 ")
        at = next(place for place, line in enumerate(lines) if line.startswith("── trainer 1,"))
        attempts = [[f"line {number} of {attempt}" for number in range(5)] + ["begun"] for attempt in (1, 2)]
        first, second = ([f"trainer    │ {line}" for line in attempt] for attempt in attempts)
        assert (lines[at + 1 : at + 7], lines[at + 8 :]) == (first, second)

        last = logs(run, "--all", "--since", "1h", "-n", "2")
        assert last[1:3] == ["checkpoint │ newer", "checkpoint │ newest"], "the last lines of each log"
        assert (last[-5:-3], last[-2:]) == (first[-2:], second[-2:])
        run.process.send_signal(15)
        assert run.end() in NOT_SAVED


def test_following_all_logs_shows_each_new_line_in_turn_with_its_role(tmp_path: Path) -> None:
    with restarted_once(tmp_path) as run:
        roles = {CHECKPOINT: 1, TRAINER: 2}
        with follower(run, "--all", "-n", "1") as shown:
            assert next(line for line in shown if "begun" in line)
            for number in range(4):
                for task, attempt in roles.items():
                    with find_paths(run.logdir).log(task, attempt).open("a") as file:
                        file.write(f"news {number}\n")
                    assert next(shown) == f"{task!s:<10} │ news {number}\n"
            run.process.send_signal(15)
            assert run.end() in NOT_SAVED


def test_following_shows_each_restart_with_its_cause(tmp_path: Path) -> None:
    with restarted_once(tmp_path) as run, follower(run, "-n", "1", "--all") as shown:
        assert next(line for line in shown if "begun" in line)
        os.kill(run.pid("trainer"), 9)
        # A log exists before its attempt's start is journaled, and until then the separator has no
        # time.
        separator = next(line for line in shown if "── trainer 3" in line)
        assert separator.startswith("── trainer 2 ")
        assert "SIGKILL" in separator
        assert next(shown) == "trainer    │ line 0 of 3\n"
        run.begun(3)
        run.process.send_signal(15)
        assert run.end() in NOT_SAVED


def test_following_a_task_without_a_log_waits_for_it(tmp_path: Path) -> None:
    with launched(tmp_path, COUNTS, backoff=Range(0.05, 1.0)) as run:
        run.begun()
        find_paths(run.logdir).log(TRAINER, 1).unlink()
        assert procsv("logs", str(run.logdir), "-f", "--role", "nobody").returncode == 2
        with follower(run) as shown:
            os.kill(run.pid("trainer"), 9)
            assert next(line for line in shown if "──" not in line) == "line 0 of 2\n"
            run.begun(2)
            run.process.send_signal(15)
            assert run.end() in NOT_SAVED


def test_the_logs_of_another_machines_standby_and_summary_service_are_shown(tmp_path: Path) -> None:
    """A member names them after its task, which makes no name of a task."""
    with launched(tmp_path, COUNTS) as run:
        run.begun()
        for role in ("standby-worker.0", "summary-worker.0"):
            (find_paths(run.logdir).logs / f"{role}.1.log").write_text(f"of {role}\n")
            assert f"{role} │ of {role}" in logs(run, "--all")
            assert logs(run, "--role", role) == [f"of {role}"]
        unknown = procsv("logs", str(run.logdir), "--role", "foo-bar", "-f")
        assert (unknown.returncode, "summary-worker.0" in unknown.stderr) == (2, True)
        run.process.send_signal(15)
        assert run.end() in NOT_SAVED

"""`procsv logs --all` of real runs: what several processes have printed, in the order in which they have."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from procsv.base.identity import CHECKPOINT, TRAINER, TaskId
from procsv.base.run.log_growth import read_marks
from procsv.base.run.logs import older_part
from procsv.base.run.paths import find_paths
from procsv.ipc.messaging.launch_settings import Range
from tests.support.launched import NOT_SAVED, procsv
from tests.watchdog.stand_ins.talk import say
from tests.watchdog.test_main import Run, launched

pytestmark = pytest.mark.fault

TALKS = """
import os
from pathlib import Path
from tests.watchdog.stand_ins.talk import talk
print("begun", flush=True)
talk("trainer", Path(os.environ["STAND_IN_TALK"]))
"""


class Talk:
    """A run whose trainer and checkpoint service print what they are told to."""

    def __init__(self, run: Run, file: Path) -> None:
        self.run, self.paths, self._file = run, find_paths(run.logdir), file

    def prints(self, role: str, text: str, attempt: int = 1) -> None:
        """Returns when the watchdog has seen it: it can tell what is printed next from it."""
        log = self.paths.log(TaskId(role), attempt)
        say(self._file, role, text)
        self.run.until(f"{text!r} in {log.name}", lambda: log.read_text().endswith(text))
        say(self._file, "nobody", "")  # else the next process of that name would say it again
        self.until_marked(log)

    def begins(self, attempt: int) -> None:
        self.run.begun(attempt)
        self.until_marked(self.paths.log(TRAINER, attempt))

    def until_marked(self, log: Path) -> None:
        self.run.until(f"a mark of {log}", lambda: (log.stat().st_ino, log.stat().st_size) in self._marked(log))

    def _marked(self, log: Path) -> set[tuple[int, int]]:
        return {(mark.file, mark.size) for mark in read_marks(self.paths.log_growth) if mark.log == log.name}

    def shown(self, *options: str) -> list[str]:
        said = procsv("logs", str(self.run.logdir), "--all", *options)
        assert said.returncode == 0, said.stderr
        return said.stdout.splitlines()

    def stop(self) -> None:
        self.run.process.send_signal(15)
        assert self.run.end() in NOT_SAVED


@contextmanager
def talking(tmp_path: Path) -> Iterator[Talk]:
    env = {"STAND_IN_CHECKPOINT": "talks", "STAND_IN_TALK": str(tmp_path / "talk")}
    with launched(tmp_path, TALKS, backoff=Range(0.05, 1.0), env=env) as run:
        talk = Talk(run, tmp_path / "talk")
        talk.begins(1)
        yield talk


def texts(lines: list[str]) -> list[str]:
    return [line.partition("│ ")[2] for line in lines if "│ " in line]


def test_what_trainer_and_checkpoint_service_print_in_turn_is_shown_in_turn_through_a_restart(tmp_path: Path) -> None:
    with talking(tmp_path) as talk:
        talk.prints("checkpoint", "a\n")
        talk.prints("trainer", "b\n")
        talk.prints("checkpoint", "c\n")
        talk.prints("trainer", "d, of which ")
        talk.prints("checkpoint", "e\n")
        talk.prints("trainer", "the end comes later\n")
        os.kill(talk.run.pid("trainer"), 9)
        talk.begins(2)
        talk.prints("checkpoint", "f\n")
        talk.prints("trainer", "g\n", attempt=2)
        first = ["begun", "a", "b", "c", "e", "d, of which the end comes later"]
        checkpoints = ["a", "c", "e", "f"]
        every = talk.shown("--since", "1h")
        assert texts(every) == [*first, "begun", "f", "g"]
        at = every.index("trainer    │ d, of which the end comes later")
        assert "trainer 1 was killed by SIGKILL" in every[at + 1], "where the next attempt begins"
        assert every[at + 2] == "trainer    │ begun"
        assert talk.shown("--since", "1h", "-n", "2") == ["checkpoint │ f", "trainer    │ g"]
        assert texts(talk.shown()) == ["a", "c", "e", "begun", "f", "g"], "the newest attempt of each"
        assert texts(talk.shown("--attempt", "1")) == [*first, "f"]
        growth = talk.paths.log_growth
        assert stat.S_IMODE(growth.stat().st_mode) == 0o600
        talk.stop()
        assert talk.shown("--since", "1h") == talk.shown("--since", "1h", "-f") == every, "when it is over, too"

        growth.write_bytes(b"\xff{" * 1000)
        lost = texts(talk.shown("--since", "1h"))
        assert [line for line in lost if line in checkpoints] == checkpoints
        assert lost[:2] == ["begun", "b"], "attempt by attempt, without marks"
        growth.unlink()
        assert texts(talk.shown("--since", "1h")) == lost


def test_a_rotation_and_lost_marks_in_the_middle_keep_what_comes_after_in_order(tmp_path: Path) -> None:
    with talking(tmp_path) as talk:
        talk.prints("checkpoint", "a\n")
        talk.prints("trainer", "b\n")
        talk.paths.log_growth.unlink()
        talk.prints("checkpoint", "c\n")
        log = talk.paths.log(CHECKPOINT, 1)
        log.rename(older_part(log))
        log.write_text("d\n")
        talk.until_marked(log)
        talk.prints("trainer", "e\n")
        with log.open("a") as file:
            file.write("f\n")
        talk.until_marked(log)
        talk.prints("trainer", "g\n")
        assert texts(talk.shown()) == ["a", "c", "d", "begun", "b", "e", "f", "g"], "b was seen again with e"
        talk.stop()

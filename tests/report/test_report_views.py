"""The report as text, as JSON and as a self-contained page."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from procsv.base.identity import CHECKPOINT, TRAINER, WATCHDOG, TaskId
from procsv.base.journal.file import Journal
from procsv.base.outcome import FitPlace
from procsv.base.system.system_clock import SystemClock
from procsv.report.page import make_page
from procsv.report.reading import read_story
from procsv.report.text import place_in_fit
from tests.support.journal import append
from tests.support.launched import procsv

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """Make a run with a crash, a killed watchdog and a checkpoint with a hostile name."""
    journal = Journal(tmp_path / "procsv" / "journal.jsonl", SystemClock())
    append(journal, "run_started", WATCHDOG, 1)
    append(journal, "spawned", TRAINER, 1, pid=1)
    append(journal, "ready", TRAINER, 1, step=1)
    append(journal, "recovered", TRAINER, 1, step=0, source="fresh", seconds=4.0, **{"from": ""})
    append(journal, "checkpoint_durable", CHECKPOINT, 1, step=7, path=HOSTILE, reason="crash", bytes=10, seconds=0.1)
    append(journal, "exited", TRAINER, 1, code=None, signal="SIGKILL", cause="killed", evidence=HOSTILE, step=9)
    append(journal, "promoted", TRAINER, 2, pid=2, standby=1)
    append(journal, "spawned", TRAINER, 2, pid=2)
    append(journal, "ready", TRAINER, 2, step=8)
    append(journal, "recovered", TRAINER, 2, step=7, source="memory", seconds=2.0, **{"from": "slot"})
    append(journal, "checkpoint_durable", CHECKPOINT, 1, step=7, path=str(tmp_path / "model.ckpt-7"), reason="periodic")
    append(journal, "run_started", WATCHDOG, 2)  # the previous one was killed
    append(journal, "spawned", TRAINER, 3, pid=3)
    append(journal, "ready", TRAINER, 3, step=9)
    append(journal, "recovered", TRAINER, 3, step=8, source="memory", seconds=2.0, **{"from": "slot"})
    append(journal, "exited", TRAINER, 3, code=0, signal=None, cause="completed", evidence="exit code 0", step=20)
    append(journal, "run_completed", TRAINER, 3, step=20, goodput=0.5)
    journal.close()
    return tmp_path


def test_the_text_names_cause_loss_and_goodput(logdir: Path) -> None:
    said = procsv("report", str(logdir), COLUMNS="160")
    assert said.returncode == 0, said.stderr
    for words in (
        "completed in",
        "1 failure",
        "2 steps done again",
        "goodput",
        "killed",
        "memory 7, standby",
        "2 checkpoints",
    ):
        assert words in said.stdout, words
    assert "\x1b[" not in said.stdout, "colours are for terminals"


def test_no_table_row_wraps_in_a_narrow_terminal_or_a_pipe(logdir: Path) -> None:
    for said in (procsv("report", str(logdir)), procsv("report", str(logdir), COLUMNS="80")):
        lines = said.stdout.splitlines()
        at = next(number for number, line in enumerate(lines) if line.lstrip().startswith("start "))
        assert [line.split()[0] for line in lines[at + 1 : at + 4]] == ["1", "2", "3"]
    assert "memory 7  " in procsv("report", str(logdir), COLUMNS="80").stdout, "the end of a start has the room"
    assert "…" not in procsv("report", str(logdir)).stdout, "a pipe has no width: nothing is cut"


def test_the_json_adds_up(logdir: Path) -> None:
    data = json.loads(procsv("report", str(logdir), "--json").stdout)
    assert sum(data["seconds"].values()) == pytest.approx(data["wall_seconds"], abs=0.01)
    assert data["lost_steps"] == 2
    assert [one["lost_steps"] for one in data["incarnations"]] == [2, 0, 0]
    assert data["outcome"] == "completed"


class _Parsed(HTMLParser):
    """The open tags, and everything that a page could load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "data", "srcset")]


def test_the_page_loads_no_resources_and_runs_no_scripts(logdir: Path) -> None:
    page = make_page(read_story(logdir, SystemClock()))
    parsed = _Parsed()
    parsed.feed(page)
    assert not parsed.loads
    assert not {"script", "link", "iframe", "img"} & set(parsed.tags)
    assert "url(" not in page
    assert "@import" not in page
    assert HOSTILE not in page


def test_the_page_marks_each_crash_and_draws_each_kind_of_time(logdir: Path) -> None:
    page = make_page(read_story(logdir, SystemClock()))
    marks = re.search(r'<div class="marks">(.*?)</div>', page, re.DOTALL)
    assert marks is not None
    assert marks[1].count("<i ") == 2
    assert "watchdog" in marks[1]
    assert str(logdir / "model.ckpt-7") not in page, "paths in the logdir are shown without it"
    assert 'name="viewport"' in page
    assert "@media print" in page


def test_text_and_page_show_the_progress_of_a_fit(logdir: Path) -> None:
    assert "epoch" not in make_page(read_story(logdir, SystemClock()))
    story = msgspec.structs.replace(read_story(logdir, SystemClock()), fit=FitPlace(2, 3, 50, 17, 40))
    assert "fit 2, epoch 3 of 50, batch 17 of 40.</p>" in make_page(story)
    assert place_in_fit(story).endswith("fit 2, epoch 3 of 50, batch 17 of 40")


def test_the_page_is_written_to_the_requested_place(logdir: Path) -> None:
    target = logdir / "report.html"
    said = procsv("report", str(logdir), "--html", str(target))
    assert said.returncode == 0
    assert target.read_text().startswith("<!doctype html>")
    refused = procsv("report", str(logdir), "--html", str(logdir / "no" / "such" / "place.html"))
    assert refused.returncode == 2
    assert "place.html" in refused.stderr


def test_a_directory_without_a_run_is_one_clear_error(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        said = procsv("report", str(directory))
        assert said.returncode == 2
        assert str(directory) in said.stderr
        assert "Traceback" not in said.stderr


def test_the_report_loads_no_tensorflow(logdir: Path) -> None:
    code = f"import sys; from procsv.cli.main import main\ntry: main(['report', {str(logdir)!r}])\nexcept SystemExit: pass\nassert 'tensorflow' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_run_of_several_tasks_is_reported_task_by_task_in_text_json_and_on_the_page(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "procsv" / "journal.jsonl", SystemClock())
    chief, worker, server = TaskId("chief"), TaskId("worker"), TaskId("ps")
    append(journal, "run_started", WATCHDOG, 1, tasks=("chief", "worker.0", "ps.0"))
    for task in (server, chief, worker):
        append(journal, "spawned", task, 1, pid=1)
    for task, source in ((chief, "fresh"), (worker, "chief")):
        append(journal, "ready", task, 1, step=1)
        append(journal, "recovered", task, 1, step=0, source=source, seconds=4.0, **{"from": ""})
    append(journal, "exited", worker, 1, code=None, signal="SIGKILL", cause="killed", evidence="", step=9)
    append(journal, "spawned", worker, 2, pid=2)
    append(journal, "run_completed", chief, 1, step=20, goodput=0.5)
    journal.close()

    text = procsv("report", str(tmp_path), COLUMNS="120").stdout
    rows = {
        line.split()[0]: line.split()[1:3] for line in text.splitlines() if line[:1].isalpha() and len(line.split()) > 2
    }
    assert (rows["chief"], rows["worker.0"], rows["ps.0"]) == (["1", "-"], ["2", "1"], ["1", "-"])
    assert "that train lost" in text
    assert "starts of chief:" in text
    tasks = json.loads(procsv("report", str(tmp_path), "--json").stdout)["tasks"]
    assert {task: len(told["incarnations"]) for task, told in tasks.items()} == {"chief": 1, "worker.0": 2, "ps.0": 1}
    page = make_page(read_story(tmp_path, SystemClock()))
    assert "<h2>Tasks</h2>" in page
    assert ">worker.0<" in page


def test_the_report_says_on_which_machine_each_task_was(tmp_path: Path) -> None:
    journal, tasks = Journal(tmp_path / "procsv" / "journal.jsonl", SystemClock()), ("chief", "worker.0")
    for place in ("n2", "n2", "n3"):
        append(journal, "run_started", WATCHDOG, 1, tasks=tasks, hosts={"chief": "n1", "worker.0": place})
        append(journal, "spawned", TaskId("chief"), 1, pid=1)
        append(journal, "stopped", TaskId("chief"), 1, source="SIGTERM", step=-1, durable_step=-1)
    journal.close()

    told = json.loads(procsv("report", str(tmp_path), "--json").stdout)["tasks"]
    assert {task: one["hosts"] for task, one in told.items()} == {"chief": ["n1"], "worker.0": ["n2", "n3"]}
    text = procsv("report", str(tmp_path), COLUMNS="120").stdout
    assert [line for line in text.splitlines() if line.startswith("worker.0") and "n2, n3" in line]
    assert ">n2, n3<" in make_page(read_story(tmp_path, SystemClock()))

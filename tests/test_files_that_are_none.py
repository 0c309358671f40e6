"""A FIFO, device or link in place of a logdir's file neither blocks its reader nor passes unnoticed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from procsv.base.journal.file import JournalReader, read_journal
from procsv.base.run.loaded import LoadedModules, read_own
from procsv.base.run.logs import last_lines
from procsv.base.run.paths import find_paths
from procsv.base.run.run_file import read_run
from procsv.base.run.saved_step import saved_step
from procsv.base.system.data_file import NotAFile
from procsv.services.checkpoint.format.bundle_reader import read_index
from procsv.services.checkpoint.format.manifest import manifest_or_none
from procsv.services.checkpoint.format.state_file import read_state
from procsv.services.checkpoint.store.intent import INTENT, read_intent
from procsv.services.checkpoint.store.service_state import NAME, StoredState
from tests.cli.test_commands import a_run, procsv
from tests.support.launched import NEWS_S_MAX

Kind = Callable[[Path], None]


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    """Interrupt a reader that waits for a writer that never comes."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(int(NEWS_S_MAX))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def refused(read: Callable[[], Any]) -> str:
    try:
        read()
    except NotAFile:
        return "refused"
    return "read"


READERS: dict[str, tuple[str, Callable[[Path], Any], Any]] = {  # file, its reader in a logdir, and the result
    "run.json": ("procsv/run.json", lambda logdir: read_run(find_paths(logdir).run_json), None),
    "journal": ("procsv/journal.jsonl", lambda d: refused(lambda: [*read_journal(find_paths(d).journal)]), "refused"),
    "older part of the journal": (
        "procsv/journal.jsonl.1",
        lambda d: refused(lambda: [*read_journal(find_paths(d).journal)]),
        "refused",
    ),
    "journal of top": (
        "procsv/journal.jsonl",
        lambda d: refused(JournalReader(find_paths(d).journal).lines),
        "refused",
    ),
    "imports": ("procsv/imports.json", lambda logdir: read_own(find_paths(logdir).imports), LoadedModules()),
    "a log": ("procsv/logs/trainer.1.log", lambda logdir: last_lines(logdir / "procsv/logs/trainer.1.log", 9), []),
    "service state": (f"procsv/{NAME}", lambda logdir: StoredState(logdir / "procsv").runs(), set()),
    "an intent": (INTENT, lambda logdir: refused(lambda: read_intent(logdir)), "refused"),
    "a manifest": ("m-1.manifest.json", lambda logdir: manifest_or_none(f"{logdir}/m-1"), None),
    "a manifest, for its step": ("m-1.manifest.json", saved_step, -1),
    "an index": ("m-1.index", lambda logdir: refused(lambda: read_index(f"{logdir}/m-1")), "refused"),
}


@pytest.mark.parametrize("kind", [os.mkfifo, a_device], ids=["FIFO", "device"])
@pytest.mark.parametrize("what", READERS)
def test_anything_but_a_regular_file_is_not_read(tmp_path: Path, what: str, kind: Kind) -> None:
    name, read, wanted = READERS[what]
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    kind(path)
    assert read(tmp_path) == wanted


@pytest.mark.parametrize("kind", [os.mkfifo, a_device], ids=["FIFO", "device"])
def test_a_checkpoint_list_that_is_not_a_file_is_refused(tmp_path: Path, kind: Kind) -> None:
    kind(tmp_path / "checkpoint")
    assert refused(lambda: read_state(tmp_path / "checkpoint")) == "refused"
    assert saved_step(tmp_path) == -1


@pytest.mark.parametrize("command", ["status", "stop", "report"])
def test_a_command_names_the_runs_file_that_is_not_a_file(tmp_path: Path, command: str) -> None:
    paths = find_paths(tmp_path / "l")
    a_run(tmp_path / "l", state="done", exit_code=0)
    bad = paths.journal if command == "report" else paths.run_json
    bad.unlink(missing_ok=True)
    os.mkfifo(bad)
    done = procsv(command, str(tmp_path / "l"))
    assert (done.returncode, done.stdout) == (73, "")
    assert done.stderr.count("\n") == 1
    assert f"{bad} is a FIFO" in done.stderr


def test_a_launch_names_a_journal_that_is_not_a_file_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('begun', flush=True)\n")
    paths = find_paths(tmp_path / "l")
    paths.home.mkdir(parents=True)
    os.mkfifo(paths.journal)
    done = procsv("launch", "--logdir", str(tmp_path / "l"), "train.py", cwd=tmp_path)
    assert done.returncode == 73
    assert f"{paths.journal} is a FIFO" in done.stderr
    assert "begun" not in done.stdout


@pytest.mark.parametrize("name", ["logs/trainer.4294967296.log", "crashes/9999999999999999999999.json"])
def test_a_number_in_a_name_that_no_attempt_can_have_is_ignored(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text("import os; print('attempt', os.environ['PROCSV_INCARNATION'], flush=True)\n")
    stray = find_paths(tmp_path / "l").home / name
    stray.parent.mkdir(parents=True)
    stray.touch()
    done = procsv("launch", "--standby", "off", "--logdir", str(tmp_path / "l"), "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "attempt 1\n" in done.stdout

"""The pytest plugin, used as its users use it: by a test file of their own, in a pytest of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from procsv.testing import Launch
from tests.support.launched import environment

PAGE = Path(__file__).parents[2] / "docs" / "faults-and-drills.md"


def _pytest(directory: Path, source: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_mine.py").write_text(source)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory / "test_mine.py")],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.fault
def test_the_test_of_the_documents_passes(tmp_path: Path) -> None:
    found = re.search(r"```python\n(def test_.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    done = _pytest(tmp_path, found[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.fault
def test_a_program_that_still_runs_when_its_test_fails_is_ended(tmp_path: Path) -> None:
    source = """
import psutil

def test_fails(procsv_launch):
    run = procsv_launch("procsv.examples.digits", "--step-ms", "50")
    run.wait_event("spawned", count=3)
    print("PIDS", run.process.pid, *[e["pid"] for e in run.events("spawned")])
    assert False
"""
    done = _pytest(tmp_path, source)
    assert done.returncode == 1
    pids = re.search(r"PIDS ([\d ]+)", done.stdout)
    assert pids is not None, done.stdout
    for pid in pids[1].split():
        assert not Path(f"/proc/{pid}/cmdline").exists() or b"procsv" not in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.fault
def test_what_is_asked_of_a_run_waits_until_it_has_begun(procsv_launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import signal; signal.pause()")
    run = procsv_launch(str(tmp_path / "train.py"), options=["--standby", "off"])
    assert run.status()["running"]
    assert run.kill("checkpoint") > 0
    run.wait_event("service_restarted")


def test_a_wait_in_vain_fails_with_the_journal_and_what_was_printed(
    procsv_launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = procsv_launch("procsv_no_such_module")
    with pytest.raises(AssertionError, match="procsv_no_such_module"):
        run.wait_event("recovered")
    assert run.wait_end() == 2


def test_the_plugin_costs_a_session_nothing_that_does_not_use_it(tmp_path: Path) -> None:
    source = """
import sys

def test_nothing_is_loaded():
    loaded = [name for name in sys.modules if name.startswith(("procsv", "zmq", "psutil", "tensorflow"))]
    assert sorted(loaded) == ["procsv", "procsv.testing"]
"""
    done = _pytest(tmp_path, source)
    assert done.returncode == 0, done.stdout

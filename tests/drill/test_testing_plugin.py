"""The pytest plugin works in its users' own test files and pytest."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from procsv.testing import Launch
from tests.support.launched import environment

PAGE = Path(__file__).parents[2] / "docs" / "faults-and-drills.md"


def _pytest(directory: Path, source: str, file: str = "test_mine.py") -> subprocess.CompletedProcess[str]:
    (directory / file).write_text(source)
    env = environment()
    del env["PROCSV_TEST_DEADLINE"]
    options = ("-q", "-p", "no:cacheprovider", "--basetemp", "own")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(directory / file)],
        cwd=directory,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.long
@pytest.mark.fault
def test_the_test_in_the_documentation_passes(tmp_path: Path) -> None:
    found = re.search(r"```python\n(def test_.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    done = _pytest(tmp_path, found[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.fault
def test_a_program_still_running_when_its_test_fails_is_ended(tmp_path: Path) -> None:
    source = """
import psutil

def test_fails(procsv_launch):
    run = procsv_launch("sleeps.py")
    run.wait_event("spawned", count=3)
    print("PIDS", run.process.pid, *[e["pid"] for e in run.events("spawned")])
    assert False
"""
    (tmp_path / "sleeps.py").write_text("import signal; signal.pause()")
    done = _pytest(tmp_path, source)
    assert done.returncode == 1
    pids = re.search(r"PIDS ([\d ]+)", done.stdout)
    assert pids is not None, done.stdout
    for pid in pids[1].split():
        assert not Path(f"/proc/{pid}/cmdline").exists() or b"procsv" not in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.fault
def test_a_question_to_a_run_waits_until_the_run_has_started(procsv_launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import signal; signal.pause()")
    run = procsv_launch(str(tmp_path / "train.py"), options=["--standby", "off"])
    assert run.status()["running"]
    assert run.kill("checkpoint") > 0
    run.wait_event("service_restarted")


@pytest.mark.fault
def test_in_another_repository_a_failing_test_shows_its_runs_output_and_last_events(
    tmp_path: Path,
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\npythonpath = ["src"]\ntestpaths = ["tests"]\nprocsv_timeout = "1m"\n'
    )
    (tmp_path / "src" / "mine").mkdir(parents=True)
    (tmp_path / "src" / "mine" / "__init__.py").touch()
    (tmp_path / "src" / "mine" / "train.py").write_text(
        "import sys, threading\nprint('I am', *sys.argv[1:], flush=True)\n"
        "if sys.argv[1] == 'idle': threading.Event().wait()\nsys.exit(sys.argv[1] == 'bad' and 3)\n"
    )
    (tmp_path / "tests").mkdir()
    source = """
import pytest

OPTIONS = ["--standby", "off", "--early-failures", "1", "--grace", "2s"]

@pytest.fixture
def launch_mine(procsv_launch):
    return lambda kind: procsv_launch("mine.train", kind, options=OPTIONS)

def test_good(launch_mine):
    launch_mine("good").assert_completed()

def test_bad(launch_mine):
    launch_mine("bad").assert_completed(timeout=60)

def test_idle(launch_mine):
    run = launch_mine("idle")
    run.wait_event("spawned", role="trainer")
    run.wait_end(timeout=0.25)
"""
    done = _pytest(tmp_path, source, "tests/test_mine.py")
    assert "2 failed, 1 passed" in done.stdout, done.stdout
    assert "I am good" not in done.stdout, "only a test that fails shows its run"
    bad = done.stdout.partition("test_bad")[2].partition("test_idle")[0]
    for words in (
        "exit code 70; the end in the journal: {'event': 'gave_up'",
        "- procsv launch, ",
        "I am bad",
        '"event": "gave_up"',
    ):
        assert words in bad, words
    idle = done.stdout.partition("test_idle")[2]
    assert "in 0.25 s" in idle
    assert "still running" in idle


def test_the_ini_option_sets_how_long_news_may_take(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nprocsv_timeout = 250ms\n")
    (tmp_path / "train.py").write_text("import signal; signal.pause()")
    done = _pytest(tmp_path, 'def test_it(procsv_launch):\n    procsv_launch("train.py").wait_event("never")\n')
    assert "no 1 x never in 0.25 s" in done.stdout, done.stdout


def test_a_wait_in_vain_fails_with_the_journal_and_the_output(
    procsv_launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = procsv_launch("procsv_no_such_module")
    with pytest.raises(AssertionError, match="procsv_no_such_module"):
        run.wait_event("recovered")
    assert run.wait_end() == 2


def test_the_plugin_costs_nothing_in_a_session_that_does_not_use_it(tmp_path: Path) -> None:
    source = """
import sys

def test_nothing_is_loaded():
    loaded = [name for name in sys.modules if name.startswith(("procsv", "zmq", "psutil", "tensorflow"))]
    assert sorted(loaded) == ["procsv", "procsv.testing"]
"""
    done = _pytest(tmp_path, source)
    assert done.returncode == 0, done.stdout

"""Several tests at a time, as scripts/test runs them: a pytest of its own, with workers, and tests that do not all pass."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launched import NEWS_S_MAX, environment
from tests.support.programs import ROOT

SHARED = """
import os, pathlib
import pytest

HERE = pathlib.Path(__file__).parent

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    place = tmp_path_factory.mktemp("shared")
    yield place
    with (HERE / "down").open("a") as file:
        file.write(f"{os.getpid()}\\n")
"""
MIXED = """
import os, pathlib, warnings
import pytest

HERE = pathlib.Path(__file__).parent

@pytest.mark.parametrize("number", range(4))
def test_number(number, shared, tmp_path):
    with (HERE / f"{pathlib.Path(__file__).name}.pids").open("a") as file:
        file.write(f"{number} {os.getpid()} {tmp_path.parent == shared.parent}\\n")
    print("number is", number)
    assert number != 2

def test_skipped():
    pytest.skip("not today")

@pytest.mark.xfail(reason="known")
def test_known():
    assert False

@pytest.fixture
def bad():
    raise LookupError("no such thing")

def test_error(bad):
    pass

class Own(Warning):
    pass

def test_warns(capfd):
    warnings.warn("mind the gap", Own)
    os.write(1, b"raw")
    assert capfd.readouterr().out == "raw"
"""
FILES = ("test_one.py", "test_three.py", "test_two.py")


def started(place: Path, *args: str, **streams: int) -> subprocess.Popen[str]:
    """A pytest there."""
    options = ("-p", "tests.support.workers", "-p", "no:cacheprovider", "--basetemp", "own")
    command = [sys.executable, "-m", "pytest", *options, *args]
    told = environment(PYTHONPATH=str(ROOT), PYTEST_ADDOPTS="-p no:xdist -p no:hypothesispytest", COLUMNS="200")
    (place / "pytest.ini").write_text("[pytest]\n")
    return subprocess.Popen(command, cwd=place, env=told, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def ran(place: Path, *args: str) -> tuple[int, str]:
    """Its exit code, and what it has printed."""
    process = started(place, *args)
    printed, _ = process.communicate(timeout=NEWS_S_MAX)
    return process.returncode, printed


def results(printed: str) -> list[str]:
    """One line a test, and the last one without how long it took."""
    lines = printed.splitlines()
    ends = [line for line in lines if re.match("(PASSED|FAILED|SKIPPED|XFAIL|ERROR) ", line)]
    return [*sorted(ends), re.sub(r" in .*", "", lines[-1])]


def test_workers_report_what_one_process_does_and_keep_the_tests_of_a_file_together_and_in_order(
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text(SHARED)
    for name in FILES:
        (tmp_path / name).write_text(MIXED)
    one_code, one = ran(tmp_path, "-rA", *FILES)
    for file in ("down", *(f"{name}.pids" for name in FILES)):
        (tmp_path / file).unlink()
    code, several = ran(tmp_path, "-rA", "--workers", "2", *FILES, "--junitxml", "report.xml")
    assert (code, results(several)) == (one_code, results(one))
    assert several.count("number is 2\n") == 3, "what a test that failed has printed is shown with it"
    assert "Own: mind the gap" in several
    assert len(re.findall("<testcase ", (tmp_path / "report.xml").read_text())) == 24
    pids = set()
    for name in FILES:
        lines = [line.split() for line in (tmp_path / f"{name}.pids").read_text().splitlines()]
        assert [(number, place) for number, _, place in lines] == [(str(number), "True") for number in range(4)]
        pids |= {pid for _, pid, _ in lines}
    assert len(pids) == 2, "each file was in one worker"
    down = (tmp_path / "down").read_text().split()
    assert sorted(down) == sorted(pids), "what all tests of a worker share is taken down in it, once"


def test_what_tests_print_at_the_same_time_is_kept_apart(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meeting")  # opened by one when the other opens it, too
    for name, mode in (("a", "r"), ("b", "w")):
        source = f"def test_{name}():\n    print('here', 'is {name}')\n    open('meeting', '{mode}').close()\n    assert False\n"
        (tmp_path / f"test_{name}.py").write_text(source)
    _, printed = ran(tmp_path, "--workers", "2")
    found = re.findall(r"_ test_(\w) _.*?Captured stdout call -+\n(.*?\n)[_=]", printed, re.DOTALL)
    assert sorted(found) == [("a", "here is a\n"), ("b", "here is b\n")], printed


def test_a_worker_that_dies_fails_the_test_that_it_was_in_and_the_rest_is_done_by_another(tmp_path: Path) -> None:
    dies = "import os, signal\ndef test_dies(): os.kill(os.getpid(), signal.SIGKILL)\ndef test_after(): pass\n"
    (tmp_path / "test_dies.py").write_text(dies)
    (tmp_path / "test_leaves.py").write_text("import os\ndef test_leaves(): os._exit(3)\ndef test_after(): pass\n")
    code, printed = ran(tmp_path, "--workers", "1")
    assert code == 1, printed
    assert "worker-1 has ended by SIGKILL within this test" in printed
    assert "worker-2 has ended with exit code 3 within this test" in printed
    assert "2 failed, 2 passed" in printed.splitlines()[-1]


def test_files_with_a_test_that_is_marked_as_slow_are_begun_first(tmp_path: Path) -> None:
    long = "import pytest\ndef test_short(): pass\n@pytest.mark.slow\ndef test_long(): pass\n"
    for name, source in (
        ("a", "def test_short(): pass\n"),
        ("b", long),
        ("c", long),
        ("d", "def test_short(): pass\n"),
    ):
        (tmp_path / f"test_{name}.py").write_text(source)
    code, printed = ran(tmp_path, "--workers", "1", "-v", "-W", "ignore::pytest.PytestUnknownMarkWarning")
    assert code == 0, printed
    assert re.findall(r"test_(\w)\.py::(test_\w+) PASSED", printed) == [
        ("b", "test_short"),
        ("b", "test_long"),
        ("c", "test_short"),
        ("c", "test_long"),
        ("a", "test_short"),
        ("d", "test_short"),
    ]


def test_nothing_is_begun_after_as_many_failures_as_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "test_fails.py").write_text("def test_fails(): assert False\ndef test_after(): pass\n")
    (tmp_path / "test_later.py").write_text("def test_later(): pass\n")
    code, printed = ran(tmp_path, "--workers", "1", "-x")
    assert code == 1, printed
    assert "stopping after 1 failures" in printed
    assert "passed" not in printed


# Each line is written at once: the other worker writes to the same pipe.
WAITS = r"""
import os, signal
import pytest

@pytest.fixture
def something():
    yield
    os.write(1, b"taken down\n")

def test_waits(something):
    os.write(1, b"waits\n")
    while True:
        signal.pause()
"""


def test_ctrl_c_ends_the_workers_which_take_down_what_their_tests_have_set_up(tmp_path: Path) -> None:
    (tmp_path / "test_waits.py").write_text(WAITS)
    (tmp_path / "test_waits_too.py").write_text(WAITS)
    with started(tmp_path, "--workers", "2", "-s") as process:
        assert process.stdout is not None
        waiting = 0
        while waiting < 2:
            line = process.stdout.readline()
            assert line, "it has ended"
            waiting += line.endswith("waits\n")
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=NEWS_S_MAX)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, printed
    assert printed.count("taken down\n") == 2
    assert "KeyboardInterrupt" in printed


def test_tests_whose_import_would_break_a_fork_are_refused(tmp_path: Path) -> None:
    source = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name='mine').start()\n"
    (tmp_path / "test_starts.py").write_text(source + "def test_passes(): pass\n")
    code, printed = ran(tmp_path, "--workers", "2")
    assert code == pytest.ExitCode.USAGE_ERROR, printed
    assert "--workers needs forks" in printed
    assert "the thread mine" in printed

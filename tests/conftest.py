"""Give every test its own directories and fail it if it leaves anything behind."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from procsv.base.errors import ProcsvBug
from procsv.ipc.messaging.endpoint import Endpoint
from tests.support import stale_mount
from tests.support.launched import NEWS_S_MAX
from tests.support.leftovers import Leftovers
from tests.support.stale_mount import StaleMount

# Hypothesis draws the same examples in every run; `HYPOTHESIS_PROFILE=explore` draws new ones.
settings.register_profile("procsv", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "procsv"))


def pytest_configure() -> None:
    """Set generous deadlines, and undo the shell's ignored signals of a background job: programs
    under test need them.
    """
    os.environ.setdefault("PROCSV_TEST_DEADLINE", str(NEWS_S_MAX))
    os.environ.pop("COLUMNS", None)  # set by the terminal that shows the suite; the tests read pipes
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files that start most processes first, so that no worker is left with one of them at the end."""
    real = Counter(item.path for item in items if item.get_closest_marker("fault"))
    items.sort(key=lambda item: -real[item.path])


def is_eager() -> bool:
    """Return whether TensorFlow is eager, as it is on import unless a test of this process has changed that."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is None or bool(tensorflow.executing_eagerly())


_count_breach = Endpoint.count_breach


@pytest.fixture(autouse=True)
def contracts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test on a message that breaks its contract. A run would count it and go on."""

    def fail(endpoint: Endpoint, why: str) -> None:
        raise ProcsvBug(f"{endpoint.me} was sent {why}")

    monkeypatch.setattr(Endpoint, "count_breach", fail)


@pytest.fixture
def refuses(contracts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count a message that breaks its contract and go on, as a run does."""
    monkeypatch.setattr(Endpoint, "count_breach", _count_breach)


@pytest.fixture
def stale_files(tmp_path: Path) -> Iterator[StaleMount]:
    """Mount `run` in the test's directory on a filesystem whose handles go stale when the test says so."""
    if why := stale_mount.why_not():
        pytest.skip(why)
    directory = tmp_path / "run"
    directory.mkdir()
    with stale_mount.stale_mount(directory) as mount:
        yield mount


@pytest.fixture(autouse=True)
def leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test its own runtime directory and TMPDIR. Fail it if it leaves a process, run,
    shared memory, file or mode.
    """
    runtime = Path(tempfile.mkdtemp(prefix="psv-", dir="/tmp"))  # short: a socket path has at most 107 bytes
    temporary = Path(f"{runtime}.t")
    temporary.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    mine = Leftovers(runtime, temporary, tmp_path)
    try:
        before = is_eager()
        yield
        if "procsv.training.runtime.observer" in sys.modules:
            sys.modules["procsv.training.runtime.observer"].discard_idle()  # left by a Supervisor without a session
        if left := mine.found():
            mine.remove()
            pytest.fail("left behind: " + "; ".join(left))
        assert is_eager() == before, "the mode of TensorFlow is not what it was: tests of other files depend on it"
    finally:
        for directory in (runtime, temporary):
            shutil.rmtree(directory, ignore_errors=True)

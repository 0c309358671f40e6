"""What holds for every test: directories of its own, and nothing left behind."""

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

# Examples are the same in every run; `HYPOTHESIS_PROFILE=explore` looks for new ones.
settings.register_profile("procsv", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "procsv"))


def pytest_configure() -> None:
    """Patience; and what a shell ignores for a suite in the background, the programs under test are to hear all the same."""
    os.environ.setdefault("PROCSV_TEST_DEADLINE", str(NEWS_S_MAX))
    os.environ.pop("COLUMNS", None)  # of the terminal that the suite is read on; what the tests read are pipes
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files with most of the tests that start processes come first, so that none of them is left to one worker at the end."""
    real = Counter(item.path for item in items if item.get_closest_marker("fault"))
    items.sort(key=lambda item: -real[item.path])


def is_eager() -> bool:
    """As TensorFlow is when it is imported, unless the tests of this process have imported it and changed that."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is None or bool(tensorflow.executing_eagerly())


_refuse = Endpoint.refuse


@pytest.fixture(autouse=True)
def contracts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that breaks its contract, which a run counts and survives, fails the test."""

    def fail(endpoint: Endpoint, why: str) -> None:
        raise ProcsvBug(f"{endpoint.me} was sent {why}")

    monkeypatch.setattr(Endpoint, "refuse", fail)


@pytest.fixture
def refuses(contracts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a message is counted and survived, as in a run."""
    monkeypatch.setattr(Endpoint, "refuse", _refuse)


@pytest.fixture
def stale_files(tmp_path: Path) -> Iterator[StaleMount]:
    """`run` in the test's directory, on a filesystem whose handles go stale when the test says so."""
    if why := stale_mount.why_not():
        pytest.skip(why)
    directory = tmp_path / "run"
    directory.mkdir()
    with stale_mount.stale_mount(directory) as mount:
        yield mount


@pytest.fixture(autouse=True)
def leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives the test a runtime directory and a TMPDIR of its own; fails it if a process, a run, shared memory, a temporary file or a
    mode is left.
    """
    runtime = Path(tempfile.mkdtemp(prefix="psv-", dir="/tmp"))  # short: socket paths have 107 bytes
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
            sys.modules["procsv.training.runtime.observer"].discard_idle()  # of a Supervisor without a session
        if left := mine.found():
            mine.remove()
            pytest.fail("left behind: " + "; ".join(left))
        assert is_eager() == before, "the mode of TensorFlow is not what it was: tests of other files depend on it"
    finally:
        for directory in (runtime, temporary):
            shutil.rmtree(directory, ignore_errors=True)

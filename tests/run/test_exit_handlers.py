"""Exit handlers of a standby's imports run only in the standby: forks can use what they made, and
the last fork leaves nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launched import Launched, launched
from tests.support.programs import ROOT

pytestmark = pytest.mark.fault

# Makes temporary directories as Matplotlib does, and in the standard library's other two ways of
# cleaning up at exit.
LIBRARY = """
import atexit, os, shutil, tempfile, weakref
by_handler, by_finalizer = (tempfile.mkdtemp(prefix=f"made-by-{name}-", dir=os.environ["TEST_TMP"]) for name in "hf")
atexit.register(shutil.rmtree, by_handler)
class Holder: pass
holder = Holder()
weakref.finalize(holder, shutil.rmtree, by_finalizer)
def hide():
    hidden = tempfile.TemporaryDirectory(prefix="made-by-t-", dir=os.environ["TEST_TMP"])
    atexit.register(hidden.cleanup)
hide()
"""
PROGRAM = """
import atexit, logging, logging.handlers, os, sys, tempfile, time, weakref
import tempdirs
made = sorted(name[:9] for name in os.listdir(os.environ["TEST_TMP"]) if name.startswith("made-by"))
print("found", *made, flush=True)
memory = logging.handlers.MemoryHandler(100, target=logging.StreamHandler(sys.stdout))
logging.getLogger("own").addHandler(memory)
logging.getLogger("own").warning("flushed by logging")
atexit.register(print, "handled by the program")
class Own: pass
own = Own()
weakref.finalize(own, print, "finalized by the program")
from tests.support.numpy_training import training
with training(save_s=600) as model:
    last = int(os.environ["PROCSV_INCARNATION"]) * 20
    while model.step < last and not model.should_stop():
        model.train()
        time.sleep(0.01)
    while model.step < 80 and not os.path.exists("go." + os.environ["PROCSV_INCARNATION"]) and not model.should_stop():
        time.sleep(0.01)
sys.exit(75 if last < 80 else 0)
"""


def test_forks_keep_what_imports_created_and_the_standby_removes_it_after_them(tmp_path: Path) -> None:
    installed, place = tmp_path / "site-packages", tmp_path / "tmp"
    installed.mkdir()
    place.mkdir()
    (installed / "tempdirs.py").write_text(LIBRARY)
    (tmp_path / "train.py").write_text(PROGRAM)
    paths = {"PYTHONPATH": f"{installed}:{ROOT}", "TEST_TMP": str(place)}
    with launched(tmp_path / "logdir", "train.py", cwd=tmp_path, standby=None, **paths) as run:
        for attempt in (1, 2, 3):
            run.wait_event("ready", attempt)
            wait_for_standby(run)
            (tmp_path / f"go.{attempt}").touch()
        assert run.wait_end() == 0
        assert len(run.events("promoted")) == 3, "all but the first are forks"
    said = run.said().splitlines()
    assert [line for line in said if line.startswith("found")] == ["found made-by-f made-by-h made-by-t"] * 4
    for text in ("flushed by logging", "handled by the program", "finalized by the program"):
        assert said.count(text) == 4, text
    assert not list(place.iterdir()), "the standby has cleaned up"


def wait_for_standby(run: Launched) -> None:
    run.wait_for(
        "a standby that waits",
        lambda: any(row["role"] == "standby" and row["state"] == "waiting" for row in run.status()["processes"]),
    )


@pytest.mark.long
def test_the_objects_of_tensorflow_do_not_slow_the_end_of_a_trainer_that_is_no_fork(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import gc, tensorflow\nprint('frozen', gc.get_freeze_count())\n")
    with launched(tmp_path / "run", str(tmp_path / "train.py")) as run:
        run.wait_end()
        (frozen,) = [line for line in run.said().splitlines() if line.startswith("frozen ")]
    assert int(frozen.split()[1]) > 100_000

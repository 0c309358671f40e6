"""A trainer forked from the standby gives the same result as any other, and the standby's death harms nothing."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.holders import holders
from tests.support.launched import Launched, launched, procsv
from tests.support.numpy_training import digest_after
from tests.support.programs import ROOT
from tests.support.sudden_end import find_living

pytestmark = pytest.mark.fault

# Trains PAUSES * 100 steps and waits for the test after each hundred. It describes its process
# before it does anything, and prints its variables at the end.
PROGRAM = """
import json, multiprocessing, os, resource, signal, sys
seen = {
    "main": sorted(name for name in vars() if not name.islower() or name.startswith("__") and name != "__cached__"),
    "name": __name__, "file": __file__, "spec": repr(__spec__), "doc": __doc__, "loader": type(__loader__).__name__,
    "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "own": "helper" in sys.modules,
    "flags": os.environ.get("TEST_FLAG"), "role": os.environ["PROCSV_ROLE"], "logdir": os.environ["PROCSV_LOGDIR"],
    "start": os.environ.get("PROCSV_START"), "signals": [str(multiprocessing.current_process().name)],
    "umask": os.umask(0o022), "nice": os.nice(0), "policy": os.sched_getscheduler(0), "stdin": os.read(0, 1).decode(),
    "leads": os.getsid(0) == os.getpid() == os.getpgid(0), "limits": [resource.getrlimit(n) for n in range(16)],
    "handlers": [str(signal.getsignal(n)).partition(" at ")[0] for n in range(1, 65) if n not in (10, 12, 15)],
    "oom": open("/proc/self/oom_score_adj").read(),
    "options": [str(sys.flags), str(sys._xoptions), repr(sys.executable), os.environ.get("PYTHONWARNINGS")],
}
os.environ["TEST_FLAG"] = "set by the program"
os.environ["TMPDIR"] = os.environ.get("XDG_RUNTIME_DIR", os.getcwd())  # short: in it are sockets
import random, tempfile, time, uuid
if __name__ != "__mp_main__":  # in a pool's process, which squares numbers
    import numpy as np, helper
    from tests.support.numpy_training import digest, training

def square(x):
    return x * x

def main():
    seen["incarnation"] = os.environ["PROCSV_INCARNATION"]
    seen["temporary"] = tempfile.gettempdir()
    if "TEST_POOLS" in os.environ and seen["incarnation"] in ("1", "2"):
        for how in ("spawn", "fork", "forkserver"):
            with multiprocessing.get_context(how).Pool(1) as pool:
                seen[how] = pool.map(square, [3])
    with open(f"seen.{seen['incarnation']}", "w") as file:
        json.dump(seen, file)
    print("begins as", seen["incarnation"], flush=True)
    print("random", random.random(), np.random.rand(), uuid.uuid4(), tempfile.mktemp(), flush=True)
    last = int(sys.argv[1]) * 100
    with training() as model:
        while model.step < last and not model.should_stop():
            model.train()
            go = f"go.{model.step}"
            while model.step % 100 == 0 and model.step < last and not os.path.exists(go) and not model.should_stop():
                time.sleep(0.02)
        if model.step == last:
            print("digest", digest(model.arrays), flush=True)

if __name__ == "__main__":
    main()
"""


@contextmanager
def trained(
    tmp_path: Path,
    pauses: int,
    standby: str | None = None,
    helper: str = "wrapt",
    **env: Any,
) -> Iterator[Launched]:
    """Run PROGRAM in its own directory."""
    home = tmp_path / "program"
    home.mkdir(parents=True)
    (home / "train.py").write_text(PROGRAM)
    (home / "helper.py").write_text(f"import {helper}\n")
    options = ("--snapshot-secs", "0.2", "--grace", "10s", "train.py", str(pauses))
    with launched(tmp_path / "logdir", *options, cwd=home, standby=standby, **env) as run:
        yield run


def let_go(tmp_path: Path, step: int) -> None:
    (tmp_path / "program" / f"go.{step}").touch()


def at_step(run: Launched, step: int) -> None:
    """Wait until the program waits there and a snapshot says so."""
    run.wait_event("recovered")
    run.wait_for(f"step {step}", lambda: file(run)["memory_step"] >= step)


def file(run: Launched) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.logdir / "procsv" / "run.json").read_text())
    return found


def digest(run: Launched) -> str:
    return next(line for line in reversed(run.said().splitlines()) if line.startswith("digest"))


def seen(tmp_path: Path, incarnation: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "program" / f"seen.{incarnation}").read_text())
    del found["incarnation"]
    return found


def row(run: Launched, role: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in run.status()["processes"] if row["role"] == role)
    return found


def wait_for_standby(run: Launched) -> None:
    """Wait until it has imported what the trainer has imported so far."""
    run.wait_for("a standby that waits", lambda: row(run, "standby")["state"] == "waiting")


def wakings(pid: int) -> dict[str, str]:
    """Return how often each thread of `pid` has gone to sleep, or "" for one that is awake."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        is_asleep = status.partition("\nState:")[2].split()[0] == "S"
        found[task.name] = status.partition("\nvoluntary")[2].split()[1] if is_asleep else ""
    return found


def wait_for_rest(run: Launched, pid: int) -> dict[str, str]:
    """Wait until all its threads sleep and none wakes between two looks. Return how often each has
    slept.

    A thread that waits for a processor does nothing either, but is about to.
    """
    seen: list[dict[str, str]] = []

    def is_so() -> bool:
        seen.append(wakings(pid))
        return len(seen) > 1 and seen[-1] == seen[-2] and all(seen[-1].values())

    run.wait_for("its rest", is_so)
    return seen[-1]


def sockets(pid: int) -> set[str]:
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(file.readlink()))
    return {name for name in found if name.startswith("socket:")}


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The digest after 500 steps without any fault."""
    return f"digest {digest_after(500)}"


@pytest.mark.long
def test_each_later_trainer_is_forked_from_the_standby_and_neither_program_nor_result_can_tell(
    tmp_path: Path, undisturbed: str
) -> None:
    with trained(tmp_path / "kills", 5, TEST_POOLS="1", TEST_FLAG="as it was started") as run:
        for kill in (1, 2):
            at_step(run, kill * 100)
            run.wait_event("standby_ready")
            wait_for_standby(run)
            waiting = row(run, "standby")
            assert waiting["pid"] == run.pid("standby")
            asleep = wait_for_rest(run, waiting["pid"])  # its work after becoming ready may take a moment
            let_go(tmp_path / "kills", kill * 100)
            at_step(run, kill * 100 + 100)
            assert wakings(waiting["pid"]) == asleep
            run.kill("trainer")
            promoted = run.wait_event("promoted", kill)[-1]
            assert (promoted["role"], promoted["incarnation"]) == ("trainer", kill + 1)
            run.wait_event("recovered", kill + 1)
            assert row(run, "trainer")["pid"] == run.pid("trainer") == promoted["pid"] != waiting["pid"]
            assert psutil.Process(promoted["pid"]).ppid() == run.pid("watchdog"), "who hears of its end, and why"
            wait_for_standby(run)
            assert row(run, "standby")["pid"] == waiting["pid"]
            assert not sockets(promoted["pid"]) & sockets(waiting["pid"])
            lock = Path(file(run)["run_dir"]) / "writer.lock"
            assert holders(lock, run.process.pid) == {promoted["pid"]}, "who became the trainer was given its lock"
            writers = {run.process.pid, *(run.pid(role) for role in ("trainer", "checkpoint", "summary"))}
            assert holders(run.logdir / "procsv", run.process.pid) == writers, "and the logdir's, which no standby has"
            shown = psutil.Process(run.pid("trainer")).cmdline()
            assert shown[shown.index("procsv.training") + 1] == "trainer"
        let_go(tmp_path / "kills", 400)
        assert run.wait_end() == 0
    assert digest(run) == undisturbed
    assert [entry["delay"] for entry in run.events("restarting")] == [0.0, 0.0]
    assert len(run.events("standby_ready")) == 1
    cold = seen(tmp_path / "kills", 1)
    assert cold["own"] is False
    assert cold["flags"] == "as it was started"
    assert [cold[how] for how in ("spawn", "fork", "forkserver")] == [[9], [9], [9]]
    assert seen(tmp_path / "kills", 2) == cold
    logs = [(run.logdir / "procsv" / "logs" / f"trainer.{number}.log").read_text() for number in (1, 2, 3)]
    assert "digest" in logs[2]
    assert "begins as 2" in logs[1]
    assert "digest" not in (run.logdir / "procsv" / "logs" / "standby.1.log").read_text()
    drawn = [next(line for line in log.splitlines() if line.startswith("random")).split() for log in logs]
    assert all(len({*values}) == 3 for values in zip(*(line[1:] for line in drawn), strict=True)), "none is drawn twice"


@pytest.mark.long
def test_a_standbys_death_harms_nothing_its_silence_costs_seconds_and_it_dies_with_the_watchdog(tmp_path: Path) -> None:
    may_wait = tmp_path / "may wait"
    with trained(tmp_path, 3, PROCSV_FAILPOINTS=f"standby.wait=await({may_wait})") as run:
        run.wait_spawned("standby")
        trainer = run.pid("trainer")
        run.kill("standby")  # the watchdog still takes it for importing
        run.wait_event("exited", 1, "standby")
        may_wait.touch()
        run.wait_event("standby_ready")
        assert [(entry["role"], entry["cause"]) for entry in run.events("exited")] == [("standby", "killed")]
        assert (run.pid("trainer"), file(run)["restarts"], file(run)["no_progress_count"]) == (trainer, 0, 0)

        run.kill("standby", signal.SIGSTOP)
        run.kill("trainer")
        run.wait_event("recovered", 2)
        assert not run.events("promoted")
        assert "did not answer" in run.events("exited", "standby")[-1]["evidence"]

        run.wait_spawned("standby", 3)
        pids = [entry["pid"] for entry in run.events("spawned")]
        run.kill("watchdog")
        run.process.wait()
        _, left = psutil.wait_procs(find_living(pids), timeout=300)
        assert not left


def test_a_standby_that_dies_as_it_becomes_the_trainer_is_replaced_by_a_cold_start(tmp_path: Path) -> None:
    with trained(tmp_path, 2, PROCSV_FAILPOINTS="standby.become=kill") as run:
        at_step(run, 100)
        run.wait_event("standby_ready")
        run.kill("trainer")
        run.wait_event("recovered", 2)
        assert not run.events("promoted")
        assert [(entry["role"], entry["incarnation"]) for entry in run.events("exited")] == [
            ("trainer", 1),
            ("standby", 1),
        ]
        assert [entry["incarnation"] for entry in run.events("spawned") if entry["role"] == "trainer"] == [1, 2]
        assert len(run.events("restarting")) == 1
        let_go(tmp_path, 100)
        assert run.wait_end() == 0
    assert len(list((run.logdir / "procsv" / "crashes").glob("*.json"))) == 1


# Imports something after the start of its session that no library imports, so after the standby
# started.
LATE = """
import sys
import tensorflow as tf
import procsv
tf1 = tf.compat.v1
print("has zipapp", "zipapp" in sys.modules, flush=True)
tf1.disable_eager_execution()
step = tf1.train.get_or_create_global_step()
train = tf1.assign_add(step, 1)
sv = procsv.Supervisor(summary_op=None)
with sv.managed_session() as sess:
    import zipapp
    while not sv.should_stop():
        sess.run(train)
        sv.coord.wait_for_stop(0.02)
"""


@pytest.mark.long
def test_a_first_launch_starts_the_trainer_at_once_and_the_standby_repeats_its_imports(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LATE)
    options = ("--snapshot-secs", "0.2", "--grace", "10s", "train.py")
    with launched(tmp_path / "logdir", *options, cwd=tmp_path, standby=None) as run:
        for incarnation in (1, 2, 3):
            run.wait_event("recovered", incarnation)
            run.wait_event("standby_ready")
            wait_for_standby(run)
            run.wait_for("a snapshot", lambda incarnation=incarnation: file(run)["memory_step"] >= incarnation)  # type: ignore[misc]
            run.kill("trainer")
            promoted = run.wait_event("promoted", incarnation)[-1]
        run.wait_event("recovered", 4)
        assert promoted["pid"] == run.pid("trainer")
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
    spawned = [entry["role"] for entry in run.events("spawned") if entry["role"] in ("trainer", "standby")]
    assert spawned == ["trainer", "standby", "trainer", "trainer", "trainer"], (
        "each later one is a fork of that standby"
    )
    logs = [(run.logdir / "procsv" / "logs" / f"trainer.{number}.log").read_text() for number in (1, 4)]
    assert "has zipapp False" in logs[0]
    assert "has zipapp True" in logs[1]


@pytest.mark.long
def test_a_hot_standby_has_run_the_program_up_to_its_session(tmp_path: Path, undisturbed: str) -> None:
    with trained(tmp_path, 5, standby="hot") as run:
        at_step(run, 100)
        ready = run.wait_event("standby_ready")[0]
        ahead = seen(tmp_path, 2)
        assert ahead == seen(tmp_path, 1)
        run.kill("trainer")
        run.wait_event("recovered", 2)
        assert [entry["pid"] for entry in run.events("promoted")] == [ready["pid"]] == [run.pid("trainer")]

        again = run.wait_event("standby_ready", 2)[-1]  # the next one imports what the promoted one has imported
        run.kill("trainer")
        run.wait_event("recovered", 3)
        assert [entry["pid"] for entry in run.events("promoted")] == [ready["pid"], again["pid"]]
        for step in (100, 200, 300, 400):
            let_go(tmp_path, step)
        assert run.wait_end() == 0
    assert digest(run) == undisturbed
    logs = run.logdir / "procsv" / "logs"
    assert "begins as 2" in (logs / "standby.1.log").read_text()
    assert "begins" not in (logs / "trainer.2.log").read_text()


@pytest.mark.long
def test_the_same_command_again_starts_from_a_standby_unless_the_program_has_changed(
    tmp_path: Path, undisturbed: str
) -> None:
    with trained(tmp_path, 5) as run:
        at_step(run, 100)
        run.wait_event("standby_ready")
        assert procsv("stop", str(run.logdir)).returncode == 0
        assert run.wait_end() == 75
    for step in (100, 200, 300, 400):
        let_go(tmp_path, step)

    def begin_again(*resume: str) -> tuple[str, int, str]:
        """How the next launch ends, how its trainer began, and who was started first."""
        known = len(run.journal())
        options = (*resume, "--snapshot-secs", "0.2", "--grace", "10s", "train.py", "5")
        with launched(run.logdir, *options, cwd=tmp_path / "program", standby=None) as again:
            assert again.wait_end() == 0
        events = [entry for entry in again.journal()[known:] if entry["role"] in ("trainer", "standby")]
        first = next(entry["role"] for entry in events if entry["event"] == "spawned")
        return digest(again), sum(entry["event"] == "promoted" for entry in events), first

    assert begin_again() == (undisturbed, 1, "standby")
    (tmp_path / "program" / "helper.py").write_text("import wrapt, os\n")
    assert begin_again("--resume") == (undisturbed, 0, "trainer")  # it was complete, and the program has changed


LIBRARY = "import threading\n{start}"
A_THREAD = "threading.Thread(target=threading.Event().wait, name='ticker', daemon=True).start()\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("start", "why"),
    [("", ""), (A_THREAD, "the thread ticker")],
    ids=["quiet", "a thread"],
)
def test_a_library_is_forked_only_if_it_starts_nothing_and_a_changed_one_is_imported_again(
    tmp_path: Path, start: str, why: str
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "ticking.py").write_text(LIBRARY.format(start=start))
    with trained(tmp_path, 3, helper="ticking", PYTHONPATH=f"{installed}:{ROOT}") as run:
        at_step(run, 100)
        standby = run.wait_event("standby_ready")[0]["pid"]
        run.kill("trainer")
        promoted = run.wait_event("promoted")[0]
        assert (promoted["pid"] == standby) is bool(why)
        run.wait_event("recovered", 2)
        if why:
            assert why in run.said()
            return
        (installed / "ticking.py").write_text(LIBRARY.format(start="NEW = True\n"))
        let_go(tmp_path, 100)
        at_step(run, 200)
        run.kill("trainer")
        run.wait_event("recovered", 3)
        assert len(run.events("promoted")) == 1
        assert f"{installed}/ticking.py has been changed" in run.said()

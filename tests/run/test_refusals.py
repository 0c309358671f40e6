"""Bad input gets one clear message and the right exit code, and loses nothing."""

import os
import time
from pathlib import Path

import pytest

from tests.support.launched import launched, procsv
from tests.support.naming import Naming

pytestmark = pytest.mark.fault

TRAINS = ("tests.support.numpy_training", "1000000", "0.02")


@pytest.mark.long
def test_row_29_a_second_launch_is_refused_within_a_second_naming_the_holder_of_the_logdir(tmp_path: Path) -> None:
    with launched(tmp_path / "logdir", *TRAINS) as run:
        run.wait_event("recovered")
        took_s, idle_s = list[float](), list[float]()
        for _ in range(3):  # from exec to exit; take the fastest, because the machine may be busy
            begun_s = time.monotonic()
            second = procsv("launch", "--logdir", str(run.logdir), *TRAINS)
            took_s.append(time.monotonic() - begun_s)
            assert second.returncode == 73
            assert str(run.process.pid) in second.stderr
            begun_s = time.monotonic()
            assert procsv("--version").returncode == 0
            idle_s.append(time.monotonic() - begun_s)
        assert min(took_s) <= 1.0 + 5 * min(idle_s)  # on a slow machine the interpreter alone takes that long
        elsewhere = Path(os.environ["XDG_RUNTIME_DIR"]) / "other"
        elsewhere.mkdir()
        third = procsv("launch", "--logdir", str(run.logdir), *TRAINS, XDG_RUNTIME_DIR=str(elsewhere))
        assert third.returncode == 73
        assert str(run.process.pid) in third.stderr
        assert list(elsewhere.iterdir()) == []
        assert procsv("stop", str(run.logdir), "--now").returncode == 0
        run.wait_end()


@pytest.mark.parametrize(
    ("source", "sign"),
    [
        ("import not_there_at_all\n", "No module named 'not_there_at_all'"),
        ("def broken(:\n", "SyntaxError"),
        ("raise ValueError('no data')\n", "ValueError: no data"),
    ],
)
def test_a_program_that_fails_before_its_first_step_causes_no_restart_loop(
    tmp_path: Path, source: str, sign: str
) -> None:
    (tmp_path / "train.py").write_text(source)
    with launched(tmp_path / "logdir", str(tmp_path / "train.py")) as run:
        assert run.wait_end() == 70
    said = run.said()
    assert sign in said
    assert "train.py" in said
    assert "procsv/training" not in said.split("Traceback", 1)[1]  # the program's own traceback, without our frames
    assert len(run.events("gave_up")) == 1
    assert len(run.events("restarting")) <= 1


@pytest.mark.long
def test_a_checkpoint_service_that_dies_at_every_start_fails_the_run_at_once_with_its_last_words(
    tmp_path: Path,
) -> None:
    failing = "checkpoint.start=raise(no luck)"
    with launched(tmp_path / "logdir", "--grace", "300s", *TRAINS, PROCSV_FAILPOINTS=failing) as run:
        assert run.wait_end() == 70
    exits = [e for e in run.events("exited") if e["role"] == "checkpoint"]
    assert len(exits) == 5, "the budget of a service"
    assert len(run.events("gave_up")) == 1
    said, log = run.said(), run.logdir / "procsv" / "logs" / "checkpoint.5.log"
    assert Naming("giving up: ", " 5 times ", " 300 s ", "exit code 1", f": {log}") == said
    assert "checkpoint.start: no luck" in said.split("giving up", 1)[1]
    last = next(e for e in run.events("exited") if e["role"] == "trainer")
    assert last["time"] - exits[-1]["time"] < 60.0, "a trainer that waits for its state is not given 204 s to end"


def test_a_missing_target_is_a_usage_error(tmp_path: Path) -> None:
    done = procsv("launch", "--logdir", str(tmp_path / "x"), "procsv.examples.digit")

    assert done.returncode == 2
    assert "digits" in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.long
@pytest.mark.parametrize("made", ["Supervisor()", "MonitoredTrainingSession()"])
def test_eager_execution_is_an_error_that_names_its_fix_once_and_is_not_retried(tmp_path: Path, made: str) -> None:
    (tmp_path / "train.py").write_text(f"import tensorflow as tf\ntf.compat.v1.train.{made}\n")
    with launched(tmp_path / "logdir", "--drop-in", str(tmp_path / "train.py")) as run:
        assert run.wait_end() == 70
    (ended,) = run.events("exited", "trainer")
    assert ended["code"] == 78
    said = run.said()
    assert said.count("disable_eager_execution()") == 1
    assert "Traceback" not in said
    report = (run.logdir / "procsv" / "crashes" / "1.txt").read_text()
    assert f'File "{tmp_path / "train.py"}", line 2' in report
    assert "procsv/training" not in report


@pytest.mark.long
def test_a_supervisor_with_another_logdir_fails_at_once_naming_both_and_the_flag(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import tensorflow as tf, procsv\n"
        "tf.compat.v1.disable_eager_execution()\n"
        f"procsv.Supervisor(logdir={str(tmp_path / 'other')!r})\n"
    )
    with launched(tmp_path / "logdir", str(tmp_path / "train.py")) as run:
        assert run.wait_end() == 70
    said = run.said()
    assert str(tmp_path / "other") in said
    assert str(tmp_path / "logdir") in said
    assert "--logdir" in said

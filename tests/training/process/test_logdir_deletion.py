"""Programs may delete their directory at the start although it is the run's logdir."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from procsv.base.run.logs import newest_number
from procsv.training.process.logdir_deletion import LogdirDeletion
from tests.support.launched import launched
from tests.support.programs import running

BUSY = """
    import os, shutil, sys, threading
    from pathlib import Path
    from procsv.training.process.logdir_deletion import LogdirDeletion
    logdir, ending = Path(sys.argv[1]), threading.Event()
    home = logdir / "procsv"

    def write():  # as the watchdog and the services do, only much faster
        while not ending.is_set():
            try:
                (home / ".run.json.new").write_text("x")
                (home / ".run.json.new").rename(home / "run.json")
            except FileNotFoundError:
                pass

    writers = [threading.Thread(target=write) for _ in range(2)]
    [writer.start() for writer in writers]
    if "watched" in sys.argv:
        LogdirDeletion(logdir, lambda: None, lambda count: None).watch_deletion()
    try:
        for _ in range(300):
            home.mkdir(parents=True)
            for number in range(20):
                (home / f"{number}.log").touch()
            shutil.rmtree(logdir)
    finally:
        ending.set()
    print("deleted")
"""


@pytest.mark.long
def test_files_that_appear_and_disappear_meanwhile_do_not_disturb_a_deletion(tmp_path: Path) -> None:
    with running(BUSY, tmp_path / "logdir", "watched") as program:
        program.wait_said("deleted")
        assert program.wait() == 0


def test_a_deletion_that_fails_for_another_reason_raises_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logdir, counts = tmp_path / "logdir", list[int]()
    nothing: Any = None
    monkeypatch.setattr(shutil, "rmtree", shutil.rmtree)  # put back at the end
    LogdirDeletion(logdir, lambda: None, counts.append).watch_deletion()
    with pytest.raises(FileNotFoundError):
        shutil.rmtree(logdir)
    shutil.rmtree(logdir, ignore_errors=True)
    with pytest.raises(TypeError):
        shutil.rmtree(nothing)
    other = tmp_path / "other"
    for directory in (logdir, other):
        (directory / "procsv").mkdir(parents=True)
        (directory / "model.ckpt-1.index").touch()
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    shutil.rmtree("relative", ignore_errors=True)
    shutil.rmtree(other)
    assert not counts
    shutil.rmtree(f"{tmp_path}/logdir/")
    assert counts == [1]
    assert not logdir.exists()


TRAINING = """
import os, shutil, sys, time
import tensorflow as tf

tf1, logdir, remove = tf.compat.v1, sys.argv[1], sys.argv[2]
tf1.disable_eager_execution()
if os.path.exists(logdir):
    tf.io.gfile.rmtree(logdir) if remove == "tensorflow" else shutil.rmtree(logdir)
os.makedirs(logdir)  # an error if somebody else has made it
step = tf1.train.get_or_create_global_step()
count = tf1.assign_add(step, 1)
pause_s = 0.01 if remove == "tensorflow" else 0.0
with tf1.train.MonitoredTrainingSession(checkpoint_dir=logdir, save_checkpoint_steps=50) as session:
    while session.run(count) < (1 << 40 if remove == "tensorflow" else 150):
        time.sleep(pause_s)
"""


@pytest.mark.fault
@pytest.mark.long
def test_a_program_that_deletes_its_logdir_at_each_start_trains_resumes_from_memory_and_keeps_a_whole_record(
    tmp_path: Path,
) -> None:
    logdir, program = tmp_path / "logdir", tmp_path / "train.py"
    program.write_text(TRAINING)
    with launched(logdir, "--drop-in", str(program), "{logdir}", "shutil") as run:
        assert run.wait_end() == 0, run.said()
        assert "the program deleted" not in run.said()
    saved = len(list(logdir.glob("*.index")))
    with launched(logdir, "--drop-in", str(program), "{logdir}", "tensorflow") as run:
        recoveries = len(run.events("recovered"))
        run.wait_for("a step", lambda: len(run.events("recovered")) > recoveries)
        durable = len(run.wait_event("checkpoint_durable"))
        run.wait_event("checkpoint_durable", durable + 1)
        assert f" {saved} checkpoints in {logdir}: " in run.said()
        pid = run.kill("trainer")
        recovered = run.wait_event("recovered", recoveries + 2)[-1]
        assert (recovered["source"], recovered["step"] > 0) == ("memory", True)
        run.wait_event("checkpoint_durable", durable + 2)
        run.wait_for(
            "its log", lambda: newest_number(logdir / "procsv" / "logs", "trainer") == recovered["incarnation"]
        )
        run.kill("watchdog", 15)
        assert run.wait_end() == 70, run.said()  # the same command would start over
        journal = run.journal()
        said = run.said()
    assert "Traceback" not in said
    assert "cannot write" not in said
    assert said.count("from the beginning\n") == 1, "after the kill it went on from memory"
    assert "deletes its directory" in said
    assert [entry["event"] for entry in journal].count("run_started") == 2, "its lines of before the deletion"
    assert next(entry["count"] for entry in journal if entry["event"] == "checkpoints_deleted") == saved
    assert pid in {entry.get("pid") for entry in journal}
    assert len(list((logdir / "procsv" / "crashes").glob("*.json"))) == 1, "of the kill, which was before a deletion"

"""`procsv checkpoints` reports what is saved and what is broken, and changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.launched import launched
from tests.support.launched import procsv as command

pytestmark = pytest.mark.fault


# Its first state gets a checkpoint before there is another.
TRAINS = """
from tests.support.numpy_training import training

with training() as model:
    model.wait_durable()
    while model.step < 5:
        model.train()
"""


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved")
    (directory / "train.py").write_text(TRAINS)
    with launched(directory / "logdir", str(directory / "train.py")) as run:
        assert run.wait_end() == 0
    return directory / "logdir"


def _inventory(directory: Path, *flags: str, code: int = 0) -> dict[str, Any]:
    done = command("checkpoints", str(directory), "--json", *flags)
    assert done.returncode == code, done.stderr
    inventory: dict[str, Any] = json.loads(done.stdout)
    return inventory


def test_checkpoints_are_listed_with_step_size_reason_and_which_is_the_latest(logdir: Path) -> None:
    found = _inventory(logdir)["checkpoints"]

    assert [(c["step"], c["reason"], c["listed"], c["latest"]) for c in found] == [
        (0, "start", True, False),
        (5, "final", True, True),
    ]
    assert not any(c["verified"] or c["error"] for c in found)
    assert all(c["bytes"] > 0 and c["time"] > 0 for c in found)


def test_verify_reads_every_byte(logdir: Path, tmp_path: Path) -> None:
    assert all(c["verified"] for c in _inventory(logdir, "--verify")["checkpoints"])
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in logdir.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    data = bytearray((copy / "model.ckpt-5.data-00000-of-00001").read_bytes())
    data[0] ^= 1
    (copy / "model.ckpt-5.data-00000-of-00001").write_bytes(data)

    sizes_only, all_bytes = _inventory(copy), _inventory(copy, "--verify", code=1)

    assert not any(c["error"] for c in sizes_only["checkpoints"])
    assert [bool(c["error"]) for c in all_bytes["checkpoints"]] == [False, True]
    assert (copy / "model.ckpt-5.index").exists()


def test_a_truncated_file_is_noticed_by_its_size(logdir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in logdir.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    (copy / "model.ckpt-0.index").write_bytes(b"")

    found = _inventory(copy, code=1)["checkpoints"]

    assert "model.ckpt-0.index" in found[0]["error"]
    table = command("checkpoints", str(copy))
    assert "model.ckpt-5  (latest)" in table.stdout


def test_a_missing_directory_is_a_usage_error(tmp_path: Path) -> None:
    done = command("checkpoints", str(tmp_path / "nothing"))

    assert done.returncode == 2
    assert str(tmp_path / "nothing") in done.stderr


def test_a_directory_without_checkpoints_gives_one_line(tmp_path: Path) -> None:
    done = command("checkpoints", str(tmp_path))

    assert (done.returncode, done.stdout) == (1, "")
    assert [line.endswith(f" {tmp_path}") for line in done.stderr.strip().splitlines()] == [True]


def test_tensorflows_checkpoints_rejected_ones_leftovers_and_missing_shards_are_told_apart(tmp_path: Path) -> None:
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default(), tf1.Session() as session:
        step = tf1.train.get_or_create_global_step()
        tf1.get_variable("v", [3])
        session.run(tf1.global_variables_initializer())
        session.run(step.assign(9))
        saver = tf1.train.Saver()
        saver.save(session, str(tmp_path / "own"), global_step=7)
        saver.save(session, str(tmp_path / "unnumbered"), write_state=False)
        saver.save(session, str(tmp_path / "torn"), global_step=8, write_state=False)
    with (tmp_path / "checkpoint").open("a") as listed:
        listed.write('all_model_checkpoint_paths: "lost-6"\n')
    (tmp_path / "torn-8.data-00000-of-00001").unlink()
    (tmp_path / "model.ckpt-3.rejected").mkdir()
    leftovers = ["gone-1.manifest.json", "half-2.data-00000-of-00001", "new-4.data-00000-of-00001.tempstate123"]
    for name in leftovers:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "events.out.tfevents.1").write_bytes(b"")

    inventory = _inventory(tmp_path, "--verify", code=1)

    found = {Path(c["path"]).name: c for c in inventory["checkpoints"]}
    lost = found.pop("lost-6")
    assert (bool(lost["error"]), lost["time"], lost["listed"]) == (True, None, True)
    shown = command("checkpoints", str(tmp_path)).stdout.splitlines()
    assert next(line for line in shown if "lost-6" in line).split()[:6] == ["6", "lost-6", "0", "B", "-", "-"]
    assert set(found) == {"own-7", "unnumbered", "torn-8"}
    assert {name: (c["reason"], c["verified"], c["listed"]) for name, c in found.items()} == {
        "own-7": (None, True, True),
        "unnumbered": (None, True, False),
        "torn-8": (None, False, False),
    }
    assert found["unnumbered"]["step"] == 9, "its own global step says so"
    assert "torn-8.data-00000-of-00001" in found["torn-8"]["error"]
    assert inventory["rejected"] == [str(tmp_path / "model.ckpt-3.rejected")]
    assert inventory["leftovers"] == [str(tmp_path / name) for name in leftovers]

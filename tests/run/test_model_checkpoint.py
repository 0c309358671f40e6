"""Model files stay whole when the trainer or service is killed, and the last ones equal the files
of an undisturbed fit.
"""

from __future__ import annotations

import filecmp
import threading
import zipfile
from pathlib import Path

import h5py
import pytest

from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

# Trains at most 190 of its 200 steps until the file named by its last argument exists.
PROGRAM = """
import os, sys, time
import keras
import numpy as np

keras.utils.set_random_seed(7)
x = np.random.default_rng(0).normal(size=(320, 8)).astype("float32")
y = x.sum(1, keepdims=True)
layers = [keras.Input((8,)), keras.layers.Dense(300, "relu"), keras.layers.Dense(300), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile("adam", "mse", jit_compile=False)


def pause(batch, logs):
    time.sleep(float(sys.argv[2]))
    while int(model.optimizer.iterations) >= 190 and not os.path.exists(sys.argv[3]):
        time.sleep(0.01)


kinds = keras.callbacks.ModelCheckpoint
callbacks = [
    kinds(sys.argv[1] + "/{epoch}.weights.h5", save_weights_only=True),
    kinds(sys.argv[1] + "/best.weights.h5", save_weights_only=True, save_best_only=True, monitor="val_loss"),
    kinds(sys.argv[1] + "/last.keras", save_freq=7),
    keras.callbacks.LambdaCallback(on_train_batch_end=pause),
]
model.fit(x, y, batch_size=16, epochs=10, verbose=0, callbacks=callbacks, validation_data=(x[:50], y[:50]))
model.load_weights(sys.argv[1] + "/best.weights.h5")
print("best", callbacks[1].best, flush=True)
"""
QUICK = ("--drop-in", "--backoff", "0.1s..1s", "--snapshot-secs", "0.05")


class Watching(threading.Thread):
    """Reads the files again and again and checks that none is half written."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self.directory, self.is_over, self.opened, self.broken = directory, threading.Event(), 0, list[str]()

    def run(self) -> None:
        while not self.is_over.wait(0.02):
            for path in [path for path in self.directory.glob("*.*") if not path.name.startswith(".")]:
                try:
                    if path.suffix == ".keras":
                        with zipfile.ZipFile(path) as archive:
                            assert archive.testzip() is None
                    else:
                        with h5py.File(path) as file:
                            assert "layers" in file
                except Exception as error:  # noqa: BLE001  whatever it is: a file is not whole
                    self.broken.append(f"{path.name}: {error}")
                self.opened += 1


def test_model_files_stay_whole_through_kills_and_end_equal_to_the_files_of_an_undisturbed_fit(
    tmp_path: Path,
) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    alone, files, go = tmp_path / "alone", tmp_path / "files", tmp_path / "go"
    with launched(tmp_path / "one", "--drop-in", str(program), str(alone), "0", str(program)) as run:
        run.assert_completed()
        wanted = run.said().split("best ")[1].split()[0]
    watching = Watching(files)
    watching.start()
    points = "parcel.publish@1=5*off->kill;parcel.within@2=2*off->kill;parcel.placed=9*off->1*kill"
    with launched(tmp_path / "two", *QUICK, str(program), str(files), "0.02", str(go), PROCSV_FAILPOINTS=points) as run:
        for step in (60, 130):
            run.wait_step(step)
            run.kill("trainer")
        go.touch()
        run.assert_completed()
        assert run.said().split("best ")[-1].split()[0] == wanted
        starts = len(run.events("recovered"))
        assert starts >= 4, "three kills of the trainer, at the least"
        assert run.events("service_restarted")
    watching.is_over.set()
    watching.join()
    assert watching.opened > 50
    assert watching.broken == []
    names = sorted(path.name for path in alone.iterdir())
    assert sorted(path.name for path in files.iterdir()) == names
    for name in names:
        if name.endswith(".h5"):
            assert filecmp.cmp(alone / name, files / name, shallow=False), name
    with zipfile.ZipFile(alone / "last.keras") as a, zipfile.ZipFile(files / "last.keras") as b:
        assert a.read("model.weights.h5") == b.read("model.weights.h5")

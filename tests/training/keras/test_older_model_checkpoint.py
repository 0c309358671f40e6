"""procsv.keras.ModelCheckpoint with an unknown Keras saves as that one does and says so."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import procsv
from procsv.training.keras import model_checkpoint

# Keras' own saving warns with a newer NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")


def test_keras_own_callback_saves_when_its_way_of_saving_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_checkpoint, "decides_apart", False)
    monkeypatch.setattr(model_checkpoint, "knows_files", False)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    saves = procsv.keras.ModelCheckpoint(f"{tmp_path}/{{epoch}}.weights.h5", save_weights_only=True)
    ours = procsv.keras.BackupAndRestore(tmp_path / "run")
    model.fit(X, X.sum(1), epochs=2, verbose=0, callbacks=[saves, ours])
    assert sorted(path.name for path in tmp_path.glob("*.h5")) == ["1.weights.h5", "2.weights.h5"]
    weights = model.get_weights()
    model.load_weights(f"{tmp_path}/2.weights.h5")
    assert [w.tobytes() for w in model.get_weights()] == [w.tobytes() for w in weights]
    assert caplog.text.count("not know how") == 1

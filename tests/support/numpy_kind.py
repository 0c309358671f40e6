"""NumPy models for the state source contract. Run as a program, it checks the contract without TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from procsv.training.snapshots.boundary import Boundary
from tests.support.numpy_state import EVALUATION, STEP, NumpyState, numpy_plan
from tests.support.state_contract import CONTRACT, Values


class _Source(NumpyState):
    """Passes the step boundary on to its model."""

    boundary: Boundary | None = None

    def attach(self, boundary: Boundary) -> None:
        super().attach(boundary)
        self.boundary = boundary


class NumpyModel:
    def __init__(self, seed: int, more: bool) -> None:
        rng = np.random.default_rng(seed)
        arrays = {
            STEP: np.array(0, np.int64),
            "weights": rng.normal(size=(700, 1000)),  # larger than one copied piece
            "bias": rng.normal(size=7).astype(np.float32),
            "counts": rng.integers(0, 9, 300),
        }
        self.source = _Source(arrays | ({"more": np.zeros(3)} if more else {}), numpy_plan(Path("/nowhere")))

    def _step(self, within: Callable[[], None]) -> None:
        arrays = self.source.arrays
        arrays["weights"] += 0.01 * arrays["weights"][::-1] + arrays["bias"][0]
        within()
        arrays["bias"] += arrays["counts"][:7].astype(np.float32)
        arrays["counts"] += int(arrays[STEP]) + 1
        arrays[STEP] += 1

    def _pass(self, call: Callable[..., None], within: Callable[[], None], about: str = "") -> None:
        if self.source.boundary is None:
            call(within)
        else:
            self.source.boundary.pass_call(call, (within,), about=about)

    def train(self) -> None:
        self._pass(self._step, lambda: None)

    def train_and_look(self, within: Callable[[], None]) -> None:
        self._pass(self._step, within)

    def evaluate(self, within: Callable[[], None]) -> None:
        self._pass(lambda look: look(), within, EVALUATION)

    def values(self) -> Values:
        return {key: array.tobytes() for key, array in self.source.arrays.items()}


class NumpyKind:
    def model(self, seed: int, more: bool = False) -> NumpyModel:
        return NumpyModel(seed, more)


if __name__ == "__main__":
    for check in CONTRACT:
        check(NumpyKind())
    assert "tensorflow" not in sys.modules, "TensorFlow was imported"
    print(len(CONTRACT), "kept")

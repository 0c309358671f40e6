"""Values that the replicas of a distributed fit hold each by itself: metrics, statistics, seeds.

Used by state.py.  TensorFlow's checkpoints have one value of a variable: the first replica's, or what all of them come to.  A
fit that is to go on with the same bits needs every replica's own.  Weights and slots are the same in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from procsv.training.eager import private


class Replicas(tf.__internal__.tracking.Trackable):
    """The components of distributed variables, each kept by itself."""

    def __init__(self, components: Sequence[Any]) -> None:
        """`components`: a variable for each replica, of each variable."""
        self._components = components
        self._restored: list[Any] | None = None

    @staticmethod
    def of(variables: Sequence[Any]) -> Replicas | None:
        """None if none of `variables` is distributed."""
        found = [one for variable in variables for one in private.components_of(variable)]
        return Replicas(found) if found else None

    def read(self) -> list[Any]:
        """Their values now, as views."""
        return [private.read_variables([one.handle], [one.dtype.base_dtype])[0] for one in self._components]

    def write(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._components, values, strict=True):
            with tf.device(variable.handle.device):
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)

    def write_restored(self) -> None:
        """After all others are restored: TensorFlow gives every replica the one value that it has."""
        restored, self._restored = self._restored, None
        if restored is not None:
            self.write(restored)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {f"component{number:05d}": value for number, value in enumerate(self.read())}

    def _restore_from_tensors(self, restored: dict[str, Any]) -> Any:
        self._restored = [restored[f"component{number:05d}"] for number in range(len(self._components))]
        return tf.no_op()

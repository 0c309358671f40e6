"""Train in a custom loop under a strategy of one task: `mirrored_loop.py STRATEGY KIND STEPS` under
`procsv launch`.

The model has everything that may differ between replicas: normalization statistics, a metric,
dropout's seeds, variables that are synchronized on read, and one that each replica updates for
itself. It prints `step N` after each step, and at the end a digest of all variables on all
replicas. It stands where the environment says (standing.py).
"""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import procsv
from tests.support.standing import stand_at

BATCH, SAMPLES = 16, 320
STRATEGIES = {
    "mirrored": lambda names: tf.distribute.MirroredStrategy(names),
    "one": lambda names: tf.distribute.OneDeviceStrategy(names[0]),
    "central": lambda names: tf.distribute.experimental.CentralStorageStrategy(names),
}


class Training(tf.Module):
    def __init__(self, strategy: Any, kind: str) -> None:
        super().__init__()
        self.strategy = strategy
        on_read = tf.VariableSynchronization.ON_READ
        with strategy.scope():
            if kind == "mixed precision":
                keras.mixed_precision.set_global_policy("mixed_float16")
            layers = [
                keras.layers.Dense(32, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.4, seed=3),
                keras.layers.Dense(3, dtype="float32"),
            ]
            self.is_central = isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)
            if self.is_central:  # where Keras' stateful layers do not run
                layers = [layers[0], layers[-1]]
            self.model = keras.Sequential([keras.Input((16,)), *layers])
            optimizer = keras.optimizers.AdamW(1e-2, use_ema=kind == "ema")
            scales = kind == "mixed precision"
            self.optimizer = keras.optimizers.LossScaleOptimizer(optimizer) if scales else optimizer
            self.optimizer.build(self.model.trainable_variables)
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()
            self.sums, self.mean, self.only = (
                tf.Variable(0.0, synchronization=on_read, aggregation=how, trainable=False)
                for how in (
                    tf.VariableAggregation.SUM,
                    tf.VariableAggregation.MEAN,
                    tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )
            )
            self.own = tf.Variable(tf.zeros([4]))  # trainable, with a value on each replica
            self.texts = tf.Variable("", trainable=False)
            self.classify = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        self.steps_made = tf.Variable(0, dtype=tf.int64)
        self.jit = kind == "compiled by XLA"

    def _replica(self, inputs: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            logits = self.model(inputs, training=True)
            loss = tf.nn.compute_average_loss(self.classify(labels, logits), global_batch_size=BATCH)
            loss = self.optimizer.scale_loss(loss)
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.sums.assign_add(tf.reduce_sum(inputs))
        self.mean.assign(tf.reduce_mean(inputs))
        self.only.assign_add(tf.reduce_max(inputs))
        if not self.is_central:
            self.accuracy.update_state(labels, logits)
            self.own.assign_add(inputs[0, :4])
            self.texts.assign(tf.strings.as_string(inputs[0, 0]))

    @tf.function  # type: ignore[untyped-decorator]  # the same
    def _step(self, inputs: Any, labels: Any) -> None:
        self.strategy.run(self._replica, args=(inputs, labels))
        self.steps_made.assign_add(1)

    def step(self, x: Any, y: Any) -> None:
        chosen = np.random.RandomState(int(self.steps_made.numpy())).randint(0, SAMPLES, BATCH)
        count = self.strategy.num_replicas_in_sync

        def share(of: Any) -> Any:
            def one(context: Any) -> Any:
                return tf.constant(of[chosen][context.replica_id_in_sync_group :: count])

            return self.strategy.experimental_distribute_values_from_function(one)

        self._step(share(x), share(y))

    def seeds(self) -> list[Any]:
        return [layer.seed_generator.state for layer in self.model.layers if hasattr(layer, "seed_generator")]

    def digest(self) -> str:
        found = hashlib.sha256()
        keras_variables = [*self.model.variables, *self.optimizer.variables, *self.accuracy.variables]
        keras_variables += [
            layer.seed_generator.state for layer in self.model.layers if hasattr(layer, "seed_generator")
        ]
        for variable in [
            *(one.value for one in keras_variables),
            self.sums,
            self.mean,
            self.only,
            self.own,
            self.texts,
        ]:
            for replica in getattr(variable, "values", (variable,)):
                found.update(np.asarray(replica.numpy()).tobytes())
        return found.hexdigest()[:16]


def main(strategy: str, kind: str, steps: str) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    keras.utils.set_random_seed(1)
    rng = np.random.RandomState(0)
    x, y = rng.normal(size=(SAMPLES, 16)).astype("float32"), rng.randint(0, 3, SAMPLES)
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    training = Training(STRATEGIES[strategy](names), kind)
    # A Checkpoint does not track Keras' metrics and seeds by itself.
    besides = [*training.accuracy.variables, *training.seeds()]
    checkpoint = tf.train.Checkpoint(training=training, besides=besides)
    with procsv.CheckpointManager(checkpoint, step_counter=training.steps_made) as manager:
        manager.restore_or_initialize()
        while training.steps_made < int(steps) and not manager.should_stop():
            training.step(x, y)
            print("step", int(training.steps_made.numpy()), flush=True)
            manager.step()
            time.sleep(0.01)
            stand_at(int(training.steps_made.numpy()))
    print("digest", training.digest(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

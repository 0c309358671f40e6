"""Train variables of every kind and write down a digest of all of them at the start of each
attempt.

`procsv launch` runs this file; its test builds the same model to read what was saved. Each line of
the notes is `STEP DIGEST`, written once a session has restored its state.
"""

from __future__ import annotations

import argparse
import hashlib
import threading
from typing import Any

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

ROWS = np.array([0, 3, 499])  # the rows of the embeddings that are updated
PIECE = 1 << 24  # elements of the large variable, read at a time


class Model:
    """`small` little variables, one of `mb` megabytes, and one or two of every other kind."""

    def __init__(self, small: int, mb: int) -> None:
        self.step = tf1.train.get_or_create_global_step()
        updates = []
        for kind in ("resource", "ref"):
            with tf1.variable_scope(kind, use_resource=kind == "resource"):
                updates += self._of_kind(small // 2)
        self.large = tf1.get_variable(
            "large", [mb * 250_000], initializer=tf1.ones_initializer(), use_resource=True, dtype=tf.float32
        )
        # Updated partly and in place, so that it may be larger than half of the memory.
        updates.append(tf1.scatter_add(self.large, [0, mb * 250_000 - 1], [1.0, 2.0]))
        text = tf1.get_variable("text", initializer=tf.constant([b"a\0b", b""]), use_resource=True)
        updates.append(text.assign(tf.stack([tf.strings.as_string(self.step), "ü" * 5000])))
        self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1, name="table")
        updates.append(self.table.insert(tf.strings.as_string(self.step), self.step))
        with tf.control_dependencies(updates):
            self.train = tf1.assign_add(self.step, 1).op
        self.saver = tf1.train.Saver([*tf1.global_variables(), self.table])
        self._start = tf1.placeholder(tf.int64, [])
        # Gather rows: a slice would first copy the whole variable.
        end = tf.minimum(self._start + PIECE, mb * 250_000)
        self._piece = self.large.sparse_read(tf.range(self._start, end))
        self._table_values = self.table.export()

    def _of_kind(self, small: int) -> list[Any]:
        rng = np.random.default_rng(small)
        littles = [
            tf1.get_variable(f"little{i}", initializer=tf.constant(rng.normal(size=i % 300), tf.float32))
            for i in range(small)
        ]
        half = tf1.get_variable("half", initializer=tf.cast(tf.range(1000), tf.bfloat16))
        parts = tf1.get_variable(
            "parts", [30, 7], initializer=tf1.zeros_initializer(), partitioner=tf1.fixed_size_partitioner(3)
        )
        rows = tf1.get_variable("rows", [500, 40], initializer=tf1.ones_initializer())
        learn = tf1.train.AdagradOptimizer(0.1).minimize(
            tf.reduce_sum(tf.square(tf.nn.embedding_lookup(rows, ROWS))), var_list=[rows]
        )
        adds = [tf1.assign_add(v, tf.ones_like(v)) for v in (*littles, *parts)]
        return [*adds, learn, tf1.assign_add(half, tf.ones_like(half))]

    def digest(self, session: Any) -> str:
        """Return a digest of every bit of the state."""
        found = hashlib.sha256()
        variables = [v for v in tf1.global_variables() if v is not self.large]
        for value in session.run(variables):
            found.update(repr(value.tolist()).encode() if value.dtype == object else value.tobytes())
        keys, values = session.run(self._table_values)
        found.update(repr(sorted(zip(keys.tolist(), values.tolist(), strict=True))).encode())
        for start in range(0, self.large.shape[0], PIECE):
            found.update(session.run(self._piece, {self._start: start}).tobytes())
        return found.hexdigest()


def main() -> None:
    import procsv

    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", required=True)
    parser.add_argument("--small", type=int, required=True)
    parser.add_argument("--mb", type=int, required=True)
    args = parser.parse_args()
    tf1.disable_eager_execution()
    model, pause = Model(args.small, args.mb), threading.Event()
    supervisor = procsv.Supervisor(saver=model.saver, summary_op=None, save_summaries_secs=0)
    with supervisor.managed_session() as session, open(args.notes, "a", buffering=1) as notes:  # noqa: PTH123  a line at a time
        notes.write(f"{session.run(model.step)} {model.digest(session)}\n")
        while not supervisor.should_stop():
            session.run(model.train)
            pause.wait(0.02)


if __name__ == "__main__":
    main()

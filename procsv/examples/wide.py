"""wide: a model of any size whose every value is known, for measuring snapshots and for catching wrong restores.

    procsv launch --logdir runs/wide procsv.examples.wide [--mb MB] [--vars N] [--steps N] [--step-ms MS] [--ref]
    python -m procsv.examples.wide [--logdir DIR] ...

The model is --vars variables of float32, together --mb megabytes (of 1,000,000 bytes).  A step adds 1 to every element
of every variable and to the global step.  So each element always equals the global step, and the program looks at all of
them when it starts and when it ends: a restore that mixes two steps, loses a variable or returns old bytes is an error
that names the variable and ends the program with code 1.

The last line says how fast it went:

    500 steps in 21.4 s: 23.4 steps/s; all 16 variables hold 500
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

import procsv
from procsv.examples.progress import Progress

tf1 = tf.compat.v1

BYTES_PER_MB = 1_000_000
BYTES_PER_ELEMENT = 4
STEPS_MAX = 2**24  # above it, float32 cannot count by ones


@dataclass(frozen=True, slots=True)
class Model:
    """The tensors that the loop fetches."""

    step: Any  # int64 []: the global step as it is
    train: Any  # int64 []: adds 1 to everything; the global step after it
    bounds: dict[str, Any]  # variable -> (smallest element, largest element)


def build_model(mb: float, count: int, use_resource: bool) -> Model:
    elements = max(1, int(mb * BYTES_PER_MB / BYTES_PER_ELEMENT / count))
    with tf1.variable_scope(tf1.get_variable_scope(), use_resource=use_resource):
        global_step = tf1.train.get_or_create_global_step()
        variables = [
            tf1.get_variable(f"weights{number:05d}", [elements], initializer=tf1.zeros_initializer())
            for number in range(count)
        ]
    one = tf1.placeholder_with_default(1.0, [], name="one")  # a constant would be folded into --mb of constants
    ones = tf.fill([elements], one)
    with tf.control_dependencies([tf1.assign_add(variable, ones) for variable in variables]):
        train = tf.identity(tf1.assign_add(global_step, 1), name="train")
    bounds = {variable.op.name: (tf.reduce_min(variable), tf.reduce_max(variable)) for variable in variables}
    return Model(tf.identity(global_step), train, bounds)


def check_values(sess: Any, model: Model) -> int:
    """The global step, when every element of every variable equals it; otherwise the program ends here."""
    step, bounds = sess.run([model.step, model.bounds])
    for name, (smallest, largest) in bounds.items():
        if not smallest == largest == step:
            sys.exit(f"procsv.examples.wide: {name} holds {smallest:g} to {largest:g} at step {step}")
    return int(step)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="procsv.examples.wide", description="Train a model of known values.")
    parser.add_argument("--logdir", help="default: the run's own under procsv launch, else runs/wide")
    parser.add_argument("--mb", type=float, default=200, help="size of all variables in megabytes (%(default)s)")
    parser.add_argument("--vars", type=int, default=16, help="number of variables (%(default)s)")
    parser.add_argument("--steps", type=int, default=500, help="global step at which training ends (%(default)s)")
    parser.add_argument("--step-ms", type=float, default=0.0, help="pause after each step, for demonstrations")
    parser.add_argument("--save-model-secs", type=float, default=60, help="seconds between checkpoints (%(default)s)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--resource", action="store_true", default=True, help="resource variables (the default)")
    kind.add_argument("--ref", action="store_false", dest="resource", help="ref variables, as in old programs")
    args = parser.parse_args(argv)
    if args.logdir is None and "PROCSV_LOGDIR" not in os.environ:
        args.logdir = "runs/wide"
    if args.vars < 1 or args.mb <= 0:
        parser.error("--vars and --mb must be positive")
    if args.steps > STEPS_MAX:
        parser.error(f"--steps must be at most {STEPS_MAX}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    tf1.disable_eager_execution()
    with tf.Graph().as_default():
        model = build_model(args.mb, args.vars, args.resource)
        sv = procsv.Supervisor(
            logdir=args.logdir, summary_op=None, save_summaries_secs=0, save_model_secs=args.save_model_secs
        )
        with sv.managed_session(config=tf1.ConfigProto(device_count={"GPU": 0})) as sess:
            first_step = step = check_values(sess, model)
            progress = Progress(first_step, args.steps)
            begin_s = time.monotonic()
            while step < args.steps and not sv.should_stop():
                step = int(sess.run(model.train))
                progress.show(step)
                if args.step_ms:
                    sv.coord.wait_for_stop(args.step_ms / 1000)
            seconds = max(time.monotonic() - begin_s, 1e-9)
            progress.end_line()
            held = check_values(sess, model)
            done = step - first_step
            print(
                f"{done} steps in {seconds:.1f} s: {done / seconds:.1f} steps/s; all {args.vars} variables hold {held}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

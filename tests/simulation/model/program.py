"""The simulated user's program: how long things take, what it computes, and its own faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Literal

from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan

MODULUS = 2**61 - 1


class ProgramError(Exception):
    """What ends the user's program: an exception, an exit code, or a signal it raises itself."""

    def __init__(
        self,
        type: str = "",
        message: str = "",
        code: int = 1,
        signal: int | None = None,
        permanent: bool = False,
        lost_peer: str = "",
    ) -> None:
        """`lost_peer`: the task whose end it reports."""
        super().__init__(type, message, code, signal)
        self.lost_peer = lost_peer
        self.type, self.message, self.code, self.signal, self.permanent = type, message, code, signal, permanent


def advance(value: int, step: int) -> int:
    """Make one training step, deterministic and different for every step."""
    return (value * 6364136223846793005 + step * 1442695040888963407 + 1) % MODULUS


_VALUES = [0]


def value_at(step: int) -> int:
    """Return the state after `step` steps without faults."""
    while len(_VALUES) <= step:
        _VALUES.append(advance(_VALUES[-1], len(_VALUES)))
    return _VALUES[step]


def value_from(first: int, step: int) -> int:
    """Return the state after `step` steps of a program that starts with `first`."""
    value = first
    for number in range(1, step + 1):
        value = advance(value, number)
    return value


@dataclass(slots=True)
class Program:
    """One user's program. Its seconds are simulated."""

    steps: int = 60
    import_s: float = 2.0
    restore_s: float = 0.2
    compile_s: float = 1.0
    step_s: float = 0.4
    snapshot_s: float = 1.5
    copy_s: float = 0.05
    slots: int = 2
    size: int = 1 << 16  # bytes of a snapshot
    is_staging: bool = False  # no shared memory: checkpoints by the Saver's own op
    save_secs: float = 8.0
    max_to_keep: int = 3
    import_error: ProgramError | None = None
    poison: dict[int, ProgramError] = field(default_factory=dict)  # step -> what always happens there
    flaky: dict[int, ProgramError] = field(default_factory=dict)  # step -> what happens there once
    restores: bool = True  # otherwise each attempt starts over with its own state, and saves anyway
    standby: bool = False  # a warm one waits
    forks: bool = True  # it can be forked
    grandchild: bool = False  # a crash leaves a grandchild behind
    # With several tasks: independent, with variables on servers, or all in step.
    together: Literal["apart", "served", "in step"] = "apart"

    @property
    def plan(self) -> CheckpointPlan:
        return CheckpointPlan(
            "/logdir/model.ckpt", "checkpoint", self.save_secs, self.max_to_keep, 10000.0, False, False, ""
        )

    def first_value(self, incarnation: int) -> int:
        """Return the state before the first step of an attempt that restored nothing."""
        return 0 if self.restores else incarnation

    def check_import(self, incarnation: int) -> None:
        if self.import_error is not None:
            raise self.import_error

    def check_step(self, step: int, incarnation: int) -> None:
        if step in self.poison:
            raise self.poison[step]
        if step in self.flaky:
            raise self.flaky.pop(step)

    @property
    def is_sound(self) -> bool:
        """Return whether it would complete without faults."""
        return self.import_error is None and not self.poison


def draw_program(rng: Random) -> Program:
    """Draw a program for one run."""
    program = Program(
        steps=rng.randrange(10, 60),
        import_s=rng.uniform(0.2, 4.0),
        restore_s=rng.uniform(0.05, 1.0),
        compile_s=rng.uniform(0.2, 3.0),
        step_s=rng.choice([0.1, 0.3, 0.6, 1.0]),
        snapshot_s=rng.choice([1.0, 1.0, 2.0, 5.0]),
        copy_s=rng.uniform(0.01, 0.5),
        slots=rng.choice([2, 3]),
        is_staging=rng.random() < 0.1,
        save_secs=rng.choice([2.0, 5.0, 20.0]),
        max_to_keep=rng.choice([1, 2, 5]),
        grandchild=rng.random() < 0.3,
        standby=rng.random() < 0.5,
        forks=rng.random() < 0.7,
    )
    kind = rng.random()
    if kind < 0.02:
        program.import_error = rng.choice(
            [
                ProgramError("ModuleNotFoundError", "No module named 'x'", permanent=True),
                ProgramError(code=78),
                ProgramError(code=127),
                ProgramError("ValueError", "bad flag"),
            ]
        )
    elif kind < 0.06:
        program.poison[rng.randrange(2, program.steps)] = ProgramError("InvalidArgumentError", "NaN")
    elif kind < 0.16:
        for step in rng.sample(range(2, program.steps), rng.randrange(1, 4)):
            program.flaky[step] = rng.choice(
                [
                    ProgramError("ValueError", f"by chance, at {step}"),
                    ProgramError(code=3),
                    ProgramError(code=75),
                    ProgramError(signal=11),
                    ProgramError(signal=6),
                ]
            )
    return program

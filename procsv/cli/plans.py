"""The fault plan of a command line: a file, lines of words, and preemptions.

Used by launch.py and drill.py.
"""

from __future__ import annotations

from pathlib import Path

from procsv.base.errors import UserError
from procsv.faults.plan import Fault, Plan
from procsv.faults.plan_parser import parse_fault, parse_plan


def make_plan(
    path: str | None, texts: tuple[str, ...], preempt_every_s: float | None, preempt_grace_s: float, seed: int
) -> Plan:
    """All of it in one plan; the seed of the file, if it has one, else `seed`.  UserError says what cannot be read."""
    plan = read_plan(path) if path is not None else Plan()
    faults = [*plan.faults, *(parse_fault(text) for text in texts)]
    if preempt_every_s is not None:
        faults.append(Fault("trainer", "preempt", preempt_grace_s, every_s=preempt_every_s, is_random=True, times=0))
    for fault in faults:
        if faults.count(fault) > 1:
            raise UserError(f"the fault '{fault}' is listed twice; use '2 times' instead")
    return Plan(tuple(faults), plan.seed or seed)


def read_plan(path: str) -> Plan:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--plan {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--plan {path} is not TOML: {error}") from error
    return parse_plan(text, path)

"""How an end is told to people.  Used by task.py; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from procsv.watchdog.events import Report

if TYPE_CHECKING:
    from procsv.watchdog.events import Ended
    from procsv.watchdog.restart import Cause

_VERBS = {
    "killed": "was killed by",
    "crashed": "crashed with",
    "hang": "hung:",
    "oom": "was killed for want of memory:",
}


def sentence(cause: str, evidence: str, step: int) -> str:
    """What became of a trainer: the predicate of a sentence.  `step`: as it was last read."""
    told = f"{_VERBS.get(cause, 'ended with')} {evidence}"
    return f"{told}, at step {step}" if step >= 0 else f"{told}, before its first step"


def where_from(memory_step: int, durable_step: int) -> str:
    """What the next trainer goes on from."""
    step = max(memory_step, durable_step)
    if step < 0:
        return "from the beginning"
    return f"from step {step}" + (" in memory" if memory_step > durable_step else "")


def report(ended: Ended, cause: Cause, pid: int, step: int, lost_steps: int, resume_step: int) -> Report:
    """The crash report of a trainer; its first sentence is the cause."""
    return Report(
        ended.incarnation,
        f"trainer {ended.incarnation} (pid {pid}) {sentence(cause.word, cause.evidence, step)}",
        cause.word,
        cause.evidence,
        ended.exit,
        ended.words,
        step,
        lost_steps,
        resume_step,
        ended.stacks,
    )

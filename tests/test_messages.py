"""Every sentence that people read is in messages.txt, which is reviewed as text.

A run's sentences come from wording.py with example values; the others come from the source, room by
room. After a change of words, `python -m tests.test_messages` rewrites the file. No other test
quotes wording: it states what a message must name, a task, a step, an option or a path
(tests/support/naming.py).
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from procsv.base.identity import TRAINER, TaskId
from procsv.base.journal.line import Line
from procsv.base.outcome import Exit, LastExit, SaveHabit
from procsv.base.units import show_time
from procsv.ipc.messaging.watchdog_messages import FirstStepDone
from procsv.ipc.shm.heartbeat import Phase
from procsv.watchdog.core.hangs.trainer_liveness import Hang, TooShort
from procsv.watchdog.core.reporting import wording
from procsv.watchdog.core.settings import AdoptedTask
from procsv.watchdog.edge.event_hook import concerns, describe
from procsv.watchdog.machines.core import membership
from tests.support.journal import an_entry
from tests.support.sentences import quoted, quotes, said_in

GOLDEN = Path(__file__).with_name("messages.txt")
ROOMS = ("base", "cli", "drill", "examples", "faults", "ipc", "report", "services", "testing", "training", "watchdog")
# TensorFlow's words, which procsv's classes repeat; a model that prints procsv's; and the words of
# this file.
WITH_WORDS_OF_THEIR_OWN = ("conformance/", "simulation/model/", "test_messages.py")
STEP = SaveHabit()
SAVES, UNSEEN, IGNORED = SaveHabit("save", True), SaveHabit("save", None), SaveHabit("save", False)
WORKER, EVALUATOR = TaskId.parse("worker.1"), TaskId.parse("evaluator.0")


def first_step(restored: int = 840, step: int = 841, habit: SaveHabit = STEP) -> FirstStepDone:
    return FirstStepDone(restored, "checkpoint", "model.ckpt-840", step, 112.3456, habit=habit)


def exited(step: int) -> LastExit:
    return LastExit(None, "SIGKILL", "killed", "SIGKILL, sender unknown", step)


def each(message: Callable[..., Any], *cases: tuple[Any, ...], **more: Any) -> list[str]:
    """Return what `message` makes of each argument in `cases`."""
    said: list[str] = []
    for case in cases:
        made = message(*case, **more)
        lines = (
            [made] if isinstance(made, str) else [one if isinstance(one, str) else one.text for one in text_of(made)]
        )
        said += [line or "(nothing)" for line in lines]
    return said


def text_of(made: Iterable[Any]) -> list[Any]:
    return [one for one in made if isinstance(one, str) or hasattr(one, "text")]


def starts() -> list[str]:
    steps = [(-1, -1), (0, -1), (-1, 0), (8, 7), (6, 7)]
    said = [line for step in steps for line in each(wording.greet, ("1.0", "/my run", "", *step))]
    for habit in (SAVES, UNSEEN, IGNORED):
        said += each(wording.greet, ("1.0", "/run", "/logdir", -1, 3, habit))
    said += each(wording.adopted, ("/l", -1), ("/l", 0))
    said += each(
        wording.training, (first_step(), 100.0, None), (first_step(), 112.4, None), (first_step(habit=SAVES), 0.0, None)
    )
    return said + each(wording.not_restored, (840, STEP), (3, SAVES), (-1, SAVES))


def deaths() -> list[str]:
    causes = [("killed", 7), ("crashed", 0), ("hang", -1), ("oom", 7), ("exit-code", 7)]
    said = each(wording.sentence, *((cause, "E", step) for cause, step in causes))
    said += each(wording.sentence, ("killed", "SIGKILL", -1), has_session=False)
    said += each(wording.sentence, ("killed", "SIGKILL", 3), habit=SAVES)
    said += each(wording.lost, (15, STEP, None), (0, SAVES, 11.4), (1, SAVES, 11.4))
    for seen, habit in itertools.product((True, False), (STEP, SAVES, UNSEEN, IGNORED)):
        said += each(wording.resumes, (3, habit), (-1, habit), was_seen=seen)
    return said + each(wording.killed_after_its_end, (Exit(None, 11), 0))


def restarts() -> list[str]:
    said = each(
        wording.where_from, (-1, -1), (0, -1), (8, 7), (6, 7), (-1, 3, SAVES), (-1, 3, UNSEEN), (-1, 3, IGNORED)
    )
    said += each(wording.starting_again, (0.0, -1, -1), (2.0, 8, 7))
    for habit in (SAVES, UNSEEN, IGNORED):
        said += each(wording.starting_again, (0.0, -1, 3), habit=habit)
    said += each(wording.starting_again, (1.0, -1, -1), (1.0, -1, 7), was_seen=False)
    said += each(wording.starting_again, (1.0, 8, 7), count=3)
    said += each(wording.starting_again, (1.0, 8, 7), keeps_state=False)
    said += each(wording.starting_again, (1.0, 8, 7), suspected_step=7)
    last = [
        (first_step(restored, 1841), 100.0, exited(step))
        for restored, step in ((840, 845), (840, 841), (840, 840), (840, 839), (-1, 3))
    ]
    said += each(wording.training, *last, (first_step(), 100.0, exited(-1)))
    said += each(
        wording.training,
        (first_step(1, 2, SAVES), 100.0, exited(3), None, 2.8),
        (first_step(1, 2, SAVES), 100.0, exited(1), None, None),
    )
    said += each(wording.training, (first_step(), 100.0, exited(845), 12))
    said += each(wording.going_back, (840,))
    said += each(wording.before_suspected, (840, STEP), (3, SAVES))
    return said + each(wording.went_back, (840, 830, 0), (840, 0, 0), (840, 840, 0))


def stops() -> list[str]:
    said = [
        line
        for source, now, early in itertools.product(
            ("SIGINT", "SIGTERM", "SIGHUP", "procsv stop"), (False, True), (False, True)
        )
        for line in each(wording.stopping, (source, now, early, 25.0))
    ]
    said += each(wording.stopping, ("SIGTERM", False, False, 25.0), is_handled=True)
    said += each(wording.stopping, ("SIGTERM", False, False, 25.0, "n5"))
    said += each(wording.signal_came, ("SIGUSR1",), ("SIGWINCH",), is_passed_on=False)
    said += each(wording.signal_came, ("SIGUSR1",), is_passed_on=True)
    said += each(wording.too_late, (25.0, None), (25.0, 0.0))
    said += each(wording.waits_for_done, (WORKER, [EVALUATOR, WORKER], 10.0))
    said += each(wording.too_late_without_server, (5.0,))
    return [*said, wording.NOT_STOPPED]


def hangs() -> list[str]:
    said = each(wording.goes_on, (TRAINER, 3, 123.456, 7))
    said += each(wording.does_nothing, (TRAINER, 3, Hang(Phase.IMPORT, 123.456, 120.0, -1)))
    said += each(wording.lingers, (61.0,))
    news = [TooShort(phase, limit_s=60.0, took_s=90.0, new_limit_s=120.0) for phase in (Phase.STEP, Phase.COMPILE)]
    return said + each(wording.limit_doubled, *((one,) for one in news))


def ends() -> list[str]:
    said = [
        line
        for has_session, drop_in in itertools.product((True, False), (True, False))
        for line in each(wording.ended, (7, has_session, drop_in), (-1, has_session, drop_in))
    ]
    said += each(wording.ended, (7, True, False), was_complete=True)
    said += each(wording.unprotected, (60.0, True), (60.0, False))
    said += each(wording.unprotected, (60.0, True), is_killed=True)
    for durable_step, has_session, deletes in (
        (-1, True, False),
        (-1, False, False),
        (0, True, False),
        (5, True, True),
    ):
        said += each(
            wording.stopped, (7, durable_step), (-1, durable_step), deletes_logdir=deletes, has_session=has_session
        )
    for habit in (SAVES, UNSEEN, IGNORED):
        said += each(wording.stopped, (4, 3), deletes_logdir=False, has_session=True, habit=habit)
    said += each(wording.starts_from_zero, ("nothing is saved",))
    said += each(wording.left_behind, (["sleep (pid 7)", "cat (pid 8)"],))
    said += each(wording.awaits_room, (3600.0, 8, 7), (3600.0, -1, -1))
    return said + each(wording.only_in_memory, (490, 21 * 2**20, 10 * 2**20, "runs/x"), (490, 1, 2, "runs/x"))


def alerts() -> list[str]:
    """Return the messages of --on-event and --notify."""
    about = {
        "step": 840,
        "durable_step": 800,
        "seconds": 90.0,
        "source": "SIGTERM",
        "why": "5 failures",
        "error": "no room",
    }
    told: list[tuple[str, dict[str, Any]]] = [
        ("exited", {"cause": "killed", "evidence": "SIGKILL", "step": 840}),
        *((name, about) for name in ("gave_up", "task_given_up", "run_completed", "stopped", "hang_detected")),
        *((name, about) for name in ("hang_suspected", "checkpoint_failed", "preempt_notice")),
        ("run_started", {"seen_until": 1.6e9}),
    ]
    lines = [Line(1.0, "trainer", 2, an_entry(name, **fields)) for name, fields in told]
    lines.append(Line(1.0, "trainer", 2, an_entry("stopped", step=-1, durable_step=-1, source="SIGINT")))
    assert all(concerns(line.entry) for line in lines)
    return [describe(line).replace(show_time(1.6e9), "2020-09-13 12:26:40") for line in lines]  # in any time zone


def machines() -> list[str]:
    said = each(wording.goes_on_after_coordinator, (WORKER, AdoptedTask("n2", 3, 77)))
    said += each(wording.goes_on_without, (WORKER, "it crashed 5 times", 1), (EVALUATOR, "it crashed 5 times", 2))
    said += each(wording.ended_without, (WORKER, "it crashed 5 times"))
    said += [membership.spare_lost(WORKER, "n5", silent_s).text for silent_s in (12.0, 0.0)]
    said.append(membership.member_replaced(WORKER, "n2", 76, 77).text)
    return [*said, *each(wording.restarts_elsewhere, (840,), (-1,)), wording.NONE_IS_SPARED]


SECTIONS = {
    "A start": starts,
    "What became of a trainer": deaths,
    "The next start": restarts,
    "A stop": stops,
    "A hang": hangs,
    "An end": ends,
    "Several tasks": machines,
    "An event, for --on-event and --notify": alerts,
}


def render() -> str:
    sections = {title: lines() for title, lines in SECTIONS.items()}
    sections |= {f"In the source of {room}": said_in(room) for room in ROOMS}
    return "\n".join(f"# {title}\n" + "".join(f"{line}\n" for line in lines) for title, lines in sections.items())


def test_the_sentences_of_a_run_are_the_reviewed_ones() -> None:
    assert render() == GOLDEN.read_text(), "python -m tests.test_messages writes it anew; then read the difference"


def test_messages_txt_has_every_sentence_of_the_watchdog() -> None:
    public = {name for name, _ in inspect.getmembers(wording, inspect.isfunction) if not name.startswith("_")}
    ours = {name for name in public if getattr(wording, name).__module__ == wording.__name__}
    source = Path(__file__).read_text()
    assert {name for name in ours if f"wording.{name}," not in source} == set()


def test_no_other_test_quotes_wording() -> None:
    ours = {quote for line in GOLDEN.read_text().splitlines() for quote in quotes(line)}
    here = Path(__file__).parent
    tests = [path for path in here.rglob("*.py") if not f"{path.relative_to(here)}".startswith(WITH_WORDS_OF_THEIR_OWN)]
    assert {place: text for path in tests for place, text in quoted(path, ours).items()} == {}, (
        "assert what it must name (tests/support/naming.py), the journal or an exit code instead"
    )


if __name__ == "__main__":
    GOLDEN.write_text(render())

"""The order in which processes have printed, made out from marks."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import product
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from procsv.base.run.log_growth import Mark
from procsv.cli.logs.print_order import Part, Printed, Turn, order_of_printing

LOGS = ("trainer.1.log", "checkpoint.1.log", "summary.1.log")


class Machine:
    """Processes that print, and a watchdog that looks at their logs now and then, as a list of events tells them to."""

    def __init__(self) -> None:
        self.time_s, self.looks, self.files = 100.0, 0, 0
        self.parts: dict[str, list[tuple[int, bytearray]]] = {log: [self.new_file()] for log in LOGS}
        self.last_s = dict.fromkeys(LOGS, self.time_s)
        self.noted: dict[str, tuple[int, int]] = {}
        self.marks: list[Mark] = []
        self.lines: dict[bytes, int] = {}  # how often somebody had looked when a line was finished
        self.begun: dict[str, bytes] = defaultdict(bytes)

    def new_file(self) -> tuple[int, bytearray]:
        self.files += 1
        return self.files, bytearray()

    def happens(self, what: str, log: str, passed_s: float) -> None:
        self.time_s += passed_s
        if what == "look":
            self.look()
        elif what == "rotate" and log == LOGS[0]:
            self.parts[log] = [*self.parts[log][-1:], self.new_file()]
        else:
            self.prints(log, ends_line=what == "line")

    def prints(self, log: str, *, ends_line: bool) -> None:
        data = f"{log} {len(self.lines)}".encode() + b"\n" * ends_line
        self.parts[log][-1][1].extend(data)
        self.begun[log] += data
        self.last_s[log] = self.time_s
        if ends_line:
            self.lines[self.begun.pop(log)] = self.looks

    def look(self) -> None:
        self.looks += 1
        for log, parts in self.parts.items():
            now = (parts[-1][0], len(parts[-1][1]))
            if now != self.noted.get(log):
                self.marks.append(Mark(max(self.time_s, 0.0), log, *now))
                self.noted[log] = now

    def attempts(self) -> list[Printed]:
        return [
            Printed(log, 1, self.last_s[log], tuple(Part(file, len(data)) for file, data in parts))
            for log, parts in self.parts.items()
        ]

    def text(self, log: str) -> bytes:
        return b"".join(data for _, data in self.parts[log])

    def shown(self, marks: list[Mark]) -> list[bytes]:
        """The lines, as `procsv logs` shows them by these marks: one that a mark cuts comes later."""
        lines, at = [], dict.fromkeys(LOGS, 0)
        for place, end in order_of_printing(self.attempts(), marks):
            log = LOGS[place]
            text = self.text(log)[: None if math.isinf(end) else int(end)]
            stop = len(text) if math.isinf(end) else max(at[log], text.rfind(b"\n") + 1)
            lines += text[at[log] : stop].splitlines(keepends=True)
            at[log] = stop
        return lines


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["line", "line", "line", "piece", "look", "look", "rotate"]),
        st.sampled_from(LOGS),
        st.floats(0.001, 10.0),
    ),
    max_size=60,
)
STEPS = st.lists(st.floats(-1e4, 1e4), min_size=61, max_size=61)


def has_all(machine: Machine, lines: list[bytes]) -> bool:
    """Each log's text once, in its own order."""
    return all(b"".join(line for line in lines if line.startswith(log.encode())) == machine.text(log) for log in LOGS)


def assert_order(machine: Machine, lines: list[bytes]) -> None:
    """If somebody has looked between the ends of two lines, the one that was finished first comes first."""
    known = [(place, machine.lines[line]) for place, line in enumerate(lines) if line in machine.lines]
    for (before, looks), (after, later_looks) in product(known, known):
        assert before < after or looks >= later_looks or before == after


@given(EVENTS)
def test_what_was_printed_before_a_look_comes_before_what_was_printed_after_it(
    events: list[tuple[str, str, float]],
) -> None:
    machine = Machine()
    for event in events:
        machine.happens(*event)
    lines = machine.shown(machine.marks)
    assert has_all(machine, lines)
    assert_order(machine, lines)


@given(EVENTS, STEPS)
def test_a_clock_that_is_set_changes_no_order_where_all_was_marked(
    events: list[tuple[str, str, float]], steps: list[float]
) -> None:
    machine = Machine()
    for (what, log, _), step in zip(events, steps, strict=False):
        machine.happens(what, log, step)
    machine.look()
    machine.last_s = dict.fromkeys(LOGS, 1e12)  # of no use
    lines = machine.shown(machine.marks)
    assert has_all(machine, lines)
    assert_order(machine, lines)


WRONG_MARKS = st.lists(
    st.builds(
        Mark,
        time=st.floats(0, 1e11),
        log=st.sampled_from([*LOGS, "gone.1.log"]),
        file=st.integers(0, 8),
        size=st.integers(0, 2**62),
    ),
    max_size=20,
)


@given(EVENTS, WRONG_MARKS, st.randoms())
def test_whatever_the_marks_say_everything_is_shown_once_and_each_log_in_its_order(
    events: list[tuple[str, str, float]], wrong: list[Mark], rng: Random
) -> None:
    machine = Machine()
    for event in events:
        machine.happens(*event)
    marks = [*machine.marks, *wrong]
    rng.shuffle(marks)
    assert has_all(machine, machine.shown(marks))


def printed(log: str, last_s: float, *parts: tuple[int, int], number: int = 1) -> Printed:
    return Printed(log, number, last_s, tuple(Part(*part) for part in parts))


def test_without_marks_attempts_come_whole_by_what_they_have_printed_last() -> None:
    attempts = [printed("b.1.log", 5.0, (1, 9)), printed("a.1.log", 4.0, (2, 9)), printed("c.1.log", 5.0, number=0)]
    assert order_of_printing(attempts, []) == [Turn(1, math.inf), Turn(2, math.inf), Turn(0, math.inf)]


def test_an_attempt_of_before_there_were_marks_comes_before_what_marks_tell_of() -> None:
    attempts = [printed("new.2.log", 9.0, (1, 20)), printed("old.1.log", 5.0, (2, 30))]
    marks = [Mark(8.0, "new.2.log", 1, 10), Mark(9.0, "new.2.log", 1, 20)]
    assert [place for place, _ in order_of_printing(attempts, marks)] == [1, 0, 0, 0]


def test_a_copy_of_a_logdir_has_other_inodes_and_the_same_order() -> None:
    marks = [Mark(1.0, "a", 1, 5), Mark(2.0, "b", 2, 5), Mark(3.0, "a", 3, 4), Mark(4.0, "b", 2, 9)]
    copy = [printed("a", 5.0, (11, 7), (13, 4)), printed("b", 5.0, (12, 9))]
    assert order_of_printing(copy, marks)[:4] == [Turn(0, 5), Turn(1, 5), Turn(0, 11), Turn(1, 9)]


def test_a_rotated_log_whose_inode_is_used_again_is_not_taken_for_the_one_before() -> None:
    marks = [Mark(1.0, "a", 1, 100), Mark(2.0, "a", 2, 90), Mark(3.0, "a", 1, 10)]
    assert order_of_printing([printed("a", 2.5, (2, 95), (1, 12))], marks) == [
        Turn(0, 90),
        Turn(0, 105),
        Turn(0, math.inf),
    ]
    not_looked_since = order_of_printing([printed("a", 2.5, (2, 95), (1, 12))], marks[:2])
    assert not_looked_since == [Turn(0, 90), Turn(0, math.inf)]


def test_of_a_log_that_somebody_has_emptied_only_what_came_since_is_believed() -> None:
    marks = [Mark(1.0, "a", 1, 100), Mark(2.0, "a", 1, 10), Mark(3.0, "a", 1, 20)]
    assert order_of_printing([printed("a", 3.0, (1, 20))], marks)[:-1] == [Turn(0, 10), Turn(0, 20)]

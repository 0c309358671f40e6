"""Marks of how logs grew: what a damage costs, and what is spared where they become many."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from procsv.base.run.log_growth import Mark, encode_marks, read_marks, thin_out

MARK = st.builds(
    Mark,
    time=st.floats(0, 1e10),
    log=st.sampled_from(["trainer.1.log", "checkpoint.1.log", "gone.1.log"]),
    file=st.integers(1, 3),
    size=st.integers(0, 2**40),
)


def mark(number: int, log: str = "trainer.1.log") -> Mark:
    return Mark(float(number), log, 7, 100 * number)


def read(path: Path, data: bytes) -> list[Mark]:
    path.write_bytes(data)
    return read_marks(path)


def test_damaged_lines_are_passed_over_and_a_file_that_is_not_there_has_none(tmp_path: Path) -> None:
    path = tmp_path / "growth.jsonl"
    assert read_marks(path) == []
    assert read_marks(tmp_path) == [], "a directory in its place"
    marks = [mark(1), mark(2), mark(3)]
    lines = encode_marks(marks).splitlines(keepends=True)
    assert read(path, b"".join(lines)) == marks
    assert read(path, lines[0] + lines[1][:20] + b"\n" + lines[2]) == [marks[0], marks[2]]
    assert read(path, lines[0] + b"\n[]\nnull\n\xff\n" + lines[1] + lines[2][:-3]) == marks[:2]


def read_thinned(marks: list[Mark], *gone: str) -> list[Mark]:
    lines = thin_out(encode_marks(marks), {mark.log for mark in marks} - {*gone}).splitlines()
    by_line = {encode_marks([one]): one for one in marks}
    return [by_line[line + b"\n"] for line in lines]


def test_in_the_older_half_every_second_mark_goes_but_each_logs_first_and_last() -> None:
    marks = [Mark(0.0, log, 7, 0) for log in ("checkpoint.1.log", "standby.1.log", "gone.1.log")]
    marks += [Mark(0.5, "checkpoint.1.log", 7, 9)]
    for number in range(1, 41):
        marks += [mark(number), mark(number, "summary.1.log")]
    thinned = read_thinned(marks, "gone.1.log")
    assert thinned[:4] == [*marks[:2], marks[3], mark(1)]
    for log in ("trainer.1.log", "summary.1.log"):
        numbers = [int(one.time) for one in thinned if one.log == log]
        middle = next(number for number in range(2, 41) if {number, number + 1} <= {*numbers})
        assert 18 < middle < 22
        assert numbers == [*range(1, middle, 2), *range(middle, 41)]


@given(st.lists(MARK, unique=True, max_size=60))
def test_thinning_out_keeps_the_order_and_the_newer_half_and_spares_an_eighth(marks: list[Mark]) -> None:
    thinned = read_thinned(marks, "gone.1.log")
    assert thinned == [one for one in marks if one in thinned]
    assert len(encode_marks(thinned)) <= len(encode_marks(marks)) * 7 // 8
    kept = len(thinned)
    while kept and thinned[-kept:] != marks[-kept:]:
        kept -= 1
    assert kept >= len(marks) // 2 - 3, "lines are not of one length"


def test_marks_of_many_logs_and_bytes_without_lines_stay_within_a_bound() -> None:
    marks = [Mark(float(number), f"trainer.{number}.log", number, 5) for number in range(1000)]
    assert 490 < len(read_thinned(marks)) < 510
    assert thin_out(b"\xff" * 1000, set()) == b""

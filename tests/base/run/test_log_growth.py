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


def test_every_second_mark_of_the_older_half_goes_and_each_logs_first_and_last_stay() -> None:
    marks = [mark(0, "checkpoint.1.log")]
    for number in range(1, 41):
        marks += [mark(number)] if number % 2 else [mark(number, "summary.1.log"), mark(number)]
    marks.insert(1, mark(1, "standby.1.log"))
    thinned = read_thinned(marks)
    assert [one for one in thinned if one.log in ("checkpoint.1.log", "standby.1.log")] == marks[:2]
    numbers = [int(one.time) for one in thinned if one.log == "trainer.1.log"]
    assert numbers == [*range(1, 20, 2), *range(20, 41)]
    assert [int(one.time) for one in thinned if one.log == "summary.1.log"] == [2, 6, 10, 14, 18, *range(22, 41, 2)]


def read_thinned(marks: list[Mark], *gone: str) -> list[Mark]:
    lines = thin_out(encode_marks(marks), lambda name: name not in gone).splitlines()
    by_line = {encode_marks([one]): one for one in marks}
    return [by_line[line + b"\n"] for line in lines]


@given(st.lists(MARK, unique=True, max_size=60))
def test_thinning_out_keeps_the_order_spares_an_eighth_and_loses_no_end(marks: list[Mark]) -> None:
    thinned = read_thinned(marks, "gone.1.log")
    assert thinned == [one for one in marks if one in thinned]
    assert all(one.log != "gone.1.log" for one in thinned)
    there = [one for one in marks if one.log != "gone.1.log"]
    if len(encode_marks(thinned)) > len(encode_marks(there[len(there) // 2 :])):
        assert {(one.log, one.file) for one in thinned} == {(one.log, one.file) for one in there}
    if len(marks) > 20:
        assert len(encode_marks(thinned)) <= len(encode_marks(marks)) * 7 // 8


def test_marks_of_logs_without_number_stay_within_a_bound() -> None:
    marks = [Mark(float(number), f"trainer.{number}.log", number, 5) for number in range(1000)]
    assert read_thinned(marks) == marks[500:]

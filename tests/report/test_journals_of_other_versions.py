"""Journals of other procsv versions are read as well as they are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from procsv.base.encoding import encode_json
from procsv.base.journal.file import read_journal
from procsv.base.journal.line import Unknown
from procsv.base.system.system_clock import SystemClock
from procsv.report.reading import read_story
from procsv.report.report_object import make_object

# Written while events were dictionaries; some of its events no longer exist.
EARLIER = """\
{"time":1000.0,"event":"run_started","role":"watchdog","incarnation":1,"run":"r-1","pid":10,"target":"t.py","args":["--lr","0.1"],"logdir":"/l","first_incarnation":1,"seen_until":null,"asked_at":999.0}
{"time":1001.0,"event":"spawned","role":"checkpoint","incarnation":1,"pid":11}
{"time":1001.0,"event":"spawned","role":"trainer","incarnation":1,"pid":12}
{"time":1011.0,"event":"ready","role":"trainer","incarnation":1,"step":1}
{"time":1011.0,"event":"recovered","role":"trainer","incarnation":1,"step":0,"source":"fresh","from":"","seconds":11.0}
{"time":1012.0,"event":"held","role":"trainer","incarnation":1,"is_exact":true,"ms":1.5,"why":""}
{"time":1013.0,"event":"captured_by_server","role":"ps.0","incarnation":1,"step":7,"chief":1}
{"time":1020.0,"event":"checkpoint_durable","role":"checkpoint","incarnation":1,"step":10,"path":"/l/model.ckpt-10","reason":"periodic","bytes":100,"seconds":0.5,"trainer":1}
{"time":1031.0,"event":"exited","role":"checkpoint","incarnation":1,"pid":11,"code":null,"signal":"SIGKILL","cause":"killed","step":10,"evidence":"SIGKILL, sender unknown"}
{"time":1031.0,"event":"exited","role":"trainer","incarnation":1,"pid":12,"code":null,"signal":"SIGKILL","cause":"killed","evidence":"SIGKILL, sender unknown","step":21}
{"time":1031.0,"event":"restarting","role":"trainer","incarnation":1,"delay":0.0,"lost_steps":2}
{"time":1032.0,"event":"promoted","role":"trainer","incarnation":2,"pid":13,"standby":1}
{"time":1032.0,"event":"spawned","role":"trainer","incarnation":2,"pid":13}
{"time":1035.0,"event":"ready","role":"trainer","incarnation":2,"step":20}
{"time":1035.0,"event":"recovered","role":"trainer","incarnation":2,"step":19,"source":"memory","from":"slot","seconds":4.0}
{"time":1055.0,"event":"exited","role":"trainer","incarnation":2,"pid":13,"code":0,"signal":null,"cause":"completed","evidence":"exit code 0","step":40}
{"time":1056.0,"event":"run_completed","role":"trainer","incarnation":2,"step":40,"goodput":0.7}
"""


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    (tmp_path / "procsv").mkdir()
    return tmp_path


def write(logdir: Path, text: str) -> Path:
    path = logdir / "procsv" / "journal.jsonl"
    path.write_text(text)
    return path


def test_a_journal_of_an_earlier_version_is_read_whole_and_gives_the_same_result(logdir: Path) -> None:
    path, damaged = write(logdir, EARLIER), list[bytes]()
    lines = list(read_journal(path, damaged))
    assert damaged == []
    assert [json.loads(encode_json(line.as_dict())) for line in lines] == [
        json.loads(text) for text in EARLIER.splitlines()
    ]

    report = make_object(read_story(logdir, SystemClock()))
    assert (report.outcome, report.failures, report.lost_steps, report.step) == ("completed", 1, 2, 40)
    assert report.damaged_lines == 0
    assert [one.source for one in report.incarnations] == ["fresh", "memory"]
    assert report.seconds["starting"] == 15.0


def test_events_and_fields_of_a_later_version_are_kept_and_skipped(logdir: Path) -> None:
    later = EARLIER.replace('"pid":12}', '"pid":12,"gpu":[0,1]}') + (
        '{"time":1057.0,"event":"rebooted","role":"host.1","incarnation":0,"why":"kernel"}\n'
    )
    *lines, last = read_journal(write(logdir, later))
    assert last.entry == Unknown(name="rebooted", own={"why": "kernel"})
    assert last.as_dict() == json.loads(later.splitlines()[-1])
    assert [line.entry.event for line in lines] == [json.loads(line)["event"] for line in EARLIER.splitlines()]
    report = make_object(read_story(logdir, SystemClock()))
    assert (report.outcome, report.step, report.damaged_lines) == ("completed", 40, 0)


def test_a_line_that_lacks_a_field_of_its_event_is_damaged(logdir: Path) -> None:
    write(logdir, EARLIER.replace('"step":21}', '"step":"21"}').replace('"delay":0.0,', ""))
    assert make_object(read_story(logdir, SystemClock())).damaged_lines == 2

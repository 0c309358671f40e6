"""Run bystanders, programs that are not training, each under a launch with short limits, for as
long as you like.

They are a server, a sleep, a preprocessing, a script that crashes, one that forks and ends, and one
that answers what is typed. None may be ended or restarted because it looks hung. A program that
ends is launched again until the time is up.
"""

from __future__ import annotations

import collections
import functools
import os
import threading
import time
import urllib.request
from pathlib import Path

import msgspec

from procsv.base.exit_codes import GAVE_UP, INTERRUPTED
from procsv.base.journal.entries import Exited
from procsv.base.journal.file import read_journal
from scripts.soaking.watch import find_live
from tests.support.launched import NEWS_S_MAX, Launched, launched, procsv

LIMIT_S = 5
PHASES = ("import", "connect", "restore", "compile", "save", "stop")
SERVICE_LIMIT_S = 10  # for a service to start on a machine that starts six launches at once
OPTIONS = (
    *("--hang-limits", ",".join([*(f"{phase}={LIMIT_S}" for phase in PHASES), f"service={SERVICE_LIMIT_S}"])),
    *("--hang-timeout", str(LIMIT_S)),
)
SHOWN_CHARS = 1000
PROGRAM = "trainer"
TOLD = ("restarting", "unprotected", "hang_suspected", "hang_detected", "gave_up")
ASKED_EVERY_S = 2.5 * LIMIT_S  # a program that waits for us is idle for longer than any limit

SERVER = """
import http.server, sys
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
with open(sys.argv[1], "w") as told:
    told.write(f"{server.server_port}\\n")
server.serve_forever()
"""
SLEEP = "import sys, time; time.sleep(float(sys.argv[1])); print('slept', flush=True)"
PREPROCESSING = """
import hashlib, os, sys, tempfile, time
until, made = time.monotonic() + float(sys.argv[1]), 0
with tempfile.TemporaryDirectory() as place:
    while time.monotonic() < until:
        with open(os.path.join(place, "part"), "wb") as part:
            part.write(hashlib.sha256(os.urandom(2**20)).digest())
        made += 1
        time.sleep(0.05)
print("prepared", made, flush=True)
"""
CRASH = "import time; time.sleep(3); raise RuntimeError('as every time')"
FORKS = """
import os, sys, time
if os.fork() == 0:
    time.sleep(1)
    os._exit(0)
print("parent ends", flush=True)
"""
REPL = """
import sys
sys.stdin = open(sys.argv[1])  # the standard input of a launch is empty
while True:
    try:
        print("=", eval(input()), flush=True)
    except EOFError:
        break
print("bye", flush=True)
"""


class Bystander(msgspec.Struct, frozen=True):
    name: str
    source: str
    args: tuple[str, ...] = ()
    code: int = 0  # its launch's exit code
    causes: tuple[str, ...] = ("completed",)  # allowed for the ends of its attempts
    said: str = ""  # at the end of a launch
    is_stopped: bool = False  # it does not end by itself
    reads_input: bool = False


def programs(place: Path, seconds: float) -> list[Bystander]:
    lasts = (str(seconds),)
    return [
        Bystander(
            "server",
            SERVER,
            (str(place / "port"),),
            INTERRUPTED,
            ("stopped",),
            "procsv saved nothing of it",
            is_stopped=True,
        ),
        Bystander("sleep", SLEEP, lasts, said="slept"),
        Bystander("preprocessing", PREPROCESSING, lasts, said="prepared"),
        Bystander("crash", CRASH, (), GAVE_UP, ("exception", "exception"), "gave up"),
        Bystander("forks", FORKS, said="parent ends"),
        Bystander("repl", REPL, (str(place / "lines"),), said="bye", reads_input=True),
    ]


def soak_by_bystanders(place: Path, minutes: float) -> list[str]:
    """Run them in parallel; return what was wrong."""
    until_s, wrong = time.monotonic() + minutes * 60, list[str]()
    threads = [
        threading.Thread(target=_watch, args=(place / program.name, program, until_s, wrong))
        for program in programs(place, minutes * 60)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def _watch(place: Path, program: Bystander, until_s: float, wrong: list[str]) -> None:
    """Run one of them again and again until the time is up."""
    try:
        launches = 0
        pause = threading.Event()
        while launches == 0 or time.monotonic() + LIMIT_S < until_s:
            launches += 1
            wrong += [f"{program.name}: {what}" for what in _launch(place / f"{launches}", program, until_s)]
            pause.wait(min(LIMIT_S, max(0.0, until_s - time.monotonic())))
        print(f"{program.name:14} {launches} launches: {_sum_up(place)}", flush=True)
    except Exception as error:  # noqa: BLE001  an error in a thread would otherwise go unnoticed
        wrong.append(f"{program.name}: {error!r}")


def _launch(logdir: Path, program: Bystander, until_s: float) -> list[str]:
    """Run one launch to its end; return what was wrong with it."""
    script = logdir.with_name(f"{logdir.name}.py")
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(program.source)
    if program.reads_input:
        os.mkfifo(program.args[0])
    with launched(logdir, *OPTIONS, str(script), *program.args) as run:
        if program.reads_input:
            _ask_input(run, Path(program.args[0]), until_s)
        if program.is_stopped:
            _ask_server(run, Path(program.args[0]), until_s)
            procsv("stop", str(logdir))
        code = run.wait_end(max(0.0, until_s - time.monotonic()) + NEWS_S_MAX)
    return _find_wrong(run, program, code) + find_live(logdir)


def _ask_input(run: Launched, pipe: Path, until_s: float) -> None:
    """Make it answer, with pauses in which it does nothing."""
    asked, pause = 0, threading.Event()
    with pipe.open("w", buffering=1) as stream:
        while time.monotonic() < until_s:
            asked += 1
            stream.write(f"{asked} * 1000\n")
            answer = f"= {asked}000\n"
            run.wait_for(answer, functools.partial(_has_said, run, answer))
            pause.wait(min(ASKED_EVERY_S, max(0.0, until_s - time.monotonic())))


def _has_said(run: Launched, text: str) -> bool:
    return text in run.said()


def _ask_server(run: Launched, told: Path, until_s: float) -> None:
    pause = threading.Event()
    run.wait_for("its port", lambda: told.exists() and told.read_text().endswith("\n"))
    while time.monotonic() < until_s:
        with urllib.request.urlopen(f"http://127.0.0.1:{told.read_text().strip()}/") as answer:
            assert answer.status == 200
        pause.wait(min(ASKED_EVERY_S, max(0.0, until_s - time.monotonic())))


def _find_wrong(run: Launched, program: Bystander, code: int) -> list[str]:
    wrong, causes = [], tuple(entry["cause"] for entry in run.events("exited", "trainer"))
    if hangs := run.events("hang_detected", "trainer"):
        wrong.append(f"taken for hanging: {hangs}")
    if (code, causes) != (program.code, program.causes):
        wrong.append(f"exit code {code} after {causes}, and not {program.code} after {program.causes}")
    if program.said not in run.said():
        wrong.append(f"it has not come to {program.said!r}: {run.said()[-SHOWN_CHARS:]}")
    return wrong


def _sum_up(place: Path) -> str:
    """Summarize the journals of all its launches."""
    lines = [line for journal in place.glob("*/procsv/journal.jsonl") for line in read_journal(journal)]
    ends = collections.Counter(
        line.entry.cause for line in lines if isinstance(line.entry, Exited) and line.role == PROGRAM
    )
    events = collections.Counter(line.entry.event for line in lines if line.entry.event in TOLD)
    return ", ".join(f"{count} x {what}" for what, count in [*ends.items(), *events.items()])

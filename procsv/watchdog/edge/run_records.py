"""Write the watchdog's records into the logdir: the journal, run.json, crash reports and metrics.

Used by event_loop.py. If the logdir cannot be written, because it is full, read-only or removed,
that is reported once. It does not end the run: training continues as long as possible.
"""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from procsv.base.clock import Clock
from procsv.base.encoding import indent_json
from procsv.base.identity import TaskId, attempt_name
from procsv.base.journal.entries import Entry
from procsv.base.journal.file import Journal, read_journal
from procsv.base.outcome import LastWords
from procsv.base.run.lease import LeaseFile
from procsv.base.run.logs import last_lines
from procsv.base.run.paths import RunPaths
from procsv.base.run.records import make_record_dir, record_mode
from procsv.base.run.run_file import RunFile, write_run
from procsv.base.system.atomic_file import replace_file
from procsv.base.system.fenced_rename import FencedRename
from procsv.ipc.messaging.summary_messages import RunMetrics
from procsv.watchdog.core.actions import Report
from procsv.watchdog.edge.metrics import MetricsPort, RunMeter, show_metrics

LOG_LINES_SHOWN = 50
AGAIN_S = 30.0  # report that writing works again after it has succeeded for this long
GONE_S = 3.0  # do not report a missing directory that is back within this time
REPORTS_AGAIN_MAX = 20  # how many of the newest reports are written again if the program deletes them
CRASHES_KEPT_MAX = 1000  # how many reports of a task are kept; the oldest are removed


class CrashReport(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a crash report, procsv/crashes/<task and attempt>.json."""

    time: float  # Unix seconds
    run: str
    target: str
    incarnation: int
    sentence: str
    cause: str
    evidence: str
    code: int | None
    signal: str | None
    step: int
    lost_steps: int  # steps to be redone
    resume_step: int  # the step that the next start resumes from; -1: unknown
    lost: str  # lost_steps as text for people
    resumes: str  # resume_step as text for people
    exception: str
    message: str
    traceback: str
    stacks: str  # of all threads, as faulthandler wrote them; "" if they were not requested
    log: str
    last_lines: list[str]


class RunRecords:
    def __init__(
        self, paths: RunPaths, clock: Clock, say: Callable[[str], None], port: MetricsPort | None = None
    ) -> None:
        self._paths = paths
        self._clock = clock
        self._say = say
        # Why writing fails ("": it works), since when it fails, and whether we have reported that.
        self._failing, self._failing_s, self._is_said = "", 0.0, False
        self._works_s: float | None = None  # since when writing has worked again
        self._is_ours = True  # False once another run has taken the logdir: then we write nothing
        self._metrics, self._port = RunMeter(), port
        for line in read_journal(paths.journal):
            self._metrics.enter(line)
        self._journal = Journal(paths.journal, clock, say)
        self._lease = LeaseFile(paths)
        self._reports: deque[tuple[CrashReport, TaskId]] = deque(maxlen=REPORTS_AGAIN_MAX)

    def append(self, entry: Entry, task: TaskId, incarnation: int) -> None:
        self._try(lambda: self._metrics.enter(self._journal.append(entry, task, incarnation)))

    def metrics_due(self, now_s: float, step: int, memory: Callable[[], float]) -> RunMetrics | None:
        """Return the metrics for TensorBoard; None if they are not due.

        `memory` returns the program's memory in bytes. It is called only if the metrics are due.
        """
        return self._metrics.due(now_s, self._clock.wall(), step, memory)

    def write_run(self, run: RunFile, durable: bool) -> None:
        """Write run.json and the metrics, unless another machine has taken the logdir.

        If we wrote run.json after that, the logdir would look like ours again once that machine
        releases it.
        """
        metrics = self._metrics.measure(run, self._clock.monotonic(), self._clock.wall())
        if metrics and self._port is not None:
            self._port.show(metrics)
        shown = show_metrics(metrics)
        self._try(lambda: self._lease.change(run.run, lambda fence: self._write_run(run, durable, shown, fence)))
        self._write_reports_again()

    def _write_run(self, run: RunFile, durable: bool, metrics: str, fence: FencedRename) -> None:
        write_run(self._paths.run_json, run, durable, fence.put)
        if metrics:
            mode = record_mode(self._paths.home)
            fence.put(self._paths.metrics, metrics.encode(), durable=False, mode=mode)

    def write_report(self, report: Report, run: RunFile) -> None:
        ended, cause, words = report.ended, report.cause, report.ended.words or LastWords()
        log = self._paths.log(ended.task, ended.incarnation)
        crash = CrashReport(
            time=self._clock.wall(),
            run=run.run,
            target=run.target,
            incarnation=ended.incarnation,
            sentence=report.sentence,
            cause=cause.word,
            evidence=cause.evidence,
            code=ended.exit.code,
            signal=ended.exit.signal_name,
            step=report.step,
            lost_steps=report.lost_steps,
            resume_step=report.resume_step,
            lost=report.lost,
            resumes=report.resumes,
            exception=words.type,
            message=words.message,
            traceback=words.traceback,
            stacks=ended.stacks,
            log=str(log),
            last_lines=last_lines(log, LOG_LINES_SHOWN),
        )
        self._reports.append((crash, ended.task))
        self._try(lambda: self._write_crash(crash, ended.task))

    def _write_reports_again(self) -> None:
        """Write the newest crash reports again, if the program has deleted the logdir with them."""
        with contextlib.suppress(OSError):  # the directories cannot be checked now
            if self._reports and self._paths.home.is_dir() and not self._paths.crashes.is_dir():
                for crash, task in self._reports:
                    self._try(partial(self._write_crash, crash, task))

    def _write_crash(self, crash: CrashReport, task: TaskId) -> None:
        crashes = self._paths.crashes
        make_record_dir(crashes)
        name, mode = attempt_name(task, crash.incarnation), record_mode(crashes)
        replace_file(crashes / f"{name}.json", indent_json(crash).encode() + b"\n", durable=False, mode=mode)
        replace_file(crashes / f"{name}.txt", _as_text(crash).encode(errors="replace"), durable=False, mode=mode)
        self._prune(crashes, task)

    def _prune(self, crashes: Path, task: TaskId) -> None:
        """Remove the oldest reports of `task`, so that a long run does not fill the disk."""
        prefix = attempt_name(task, 0).removesuffix("0")
        names = [path.stem.removeprefix(prefix) for path in crashes.glob(f"{prefix}*.json")]
        for number in sorted(int(name) for name in names if name.isdecimal())[:-CRASHES_KEPT_MAX]:
            for suffix in (".txt", ".json"):  # .json last, so that after a kill in between the next call finds it
                (crashes / f"{prefix}{number}{suffix}").unlink(missing_ok=True)

    def stop_writing(self) -> None:
        self._is_ours = False

    def _try(self, write: Callable[[], object]) -> None:
        try:
            if self._is_ours:
                write()
            if not self._failing or not self._paths.home.is_dir():
                return  # without the directory, a success shows nothing: an open file can be written after its deletion
        except OSError as error:
            self._failed(error)
        else:
            now_s = self._clock.monotonic()
            self._works_s = now_s if self._works_s is None else self._works_s
            if self._is_said and now_s < self._works_s + AGAIN_S:
                return  # a nearly full disk has room from time to time
            if self._is_said:
                self._say(f"{self._paths.home} can be written again")
            self._failing, self._is_said, self._works_s = "", False, None

    def _failed(self, error: OSError) -> None:
        """Report a failure once.

        Report a missing directory only after GONE_S, because many programs recreate their logdir.
        """
        now_s, self._works_s = self._clock.monotonic(), None
        if not self._failing:
            self._failing, self._failing_s = error.strerror or str(error), now_s
        if not self._is_said and (error.errno != errno.ENOENT or now_s >= self._failing_s + GONE_S):
            self._say_failing()

    def _say_failing(self) -> None:
        self._is_said = True
        self._say(
            f"cannot write to {self._paths.home}: {self._failing}; the run goes on, logs and journal will have a gap"
        )

    def close(self) -> None:
        if self._failing and not self._is_said:
            self._say_failing()
        self._journal.close()
        if self._port is not None:
            self._port.close()


def _as_text(crash: CrashReport) -> str:
    parts = [
        crash.sentence,
        "",
        f"target     {crash.target}",
        f"exit       {crash.signal or crash.code}",
        f"cause      {crash.cause}: {crash.evidence}",
        f"step       {crash.step if crash.step >= 0 else 'none yet'}",
        f"lost       {crash.lost}",
        f"resumes    {crash.resumes}",
        f"log        {crash.log}",
    ]
    if crash.traceback:
        parts += ["", crash.traceback.rstrip()]
    if crash.stacks:
        # A dump that begins with "Stack " shows the main thread alone. It is requested before the dump of all threads.
        first = "the stack of its main thread, and then " if crash.stacks.startswith("Stack ") else ""
        parts += ["", f"{first}the stacks of its threads, the main thread last:", crash.stacks.rstrip()]
    if crash.last_lines:
        parts += [
            "",
            f"the last {len(crash.last_lines)} lines of the log:",
            *(f"  {line}" for line in crash.last_lines),
        ]
    return "\n".join(parts) + "\n"

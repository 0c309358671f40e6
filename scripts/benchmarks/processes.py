"""Start what is measured, each in a process and a directory of its own, and leave nothing behind.

Called by the tables. Whatever happens (an error, Ctrl-C), processes started here are ended and
their directories removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from procsv.base.run.paths import find_paths
from procsv.base.system.locks import FileLock
from procsv.training.process.bootstrap import MMAP_BYTES, TRIM_BYTES, arenas_max
from scripts.benchmarks.settings import Trial

Result: TypeAlias = dict[str, Any]

TRIAL_S_MAX = 900.0  # after this, it hangs
END_S_MAX = 40.0  # for a run to end after SIGTERM
ROOT = Path(__file__).resolve().parents[2]
KEEP_MALLOC = {  # the malloc that `procsv launch` gives its trainers
    "MALLOC_MMAP_THRESHOLD_": str(MMAP_BYTES),
    "MALLOC_TRIM_THRESHOLD_": str(TRIM_BYTES),
    "MALLOC_ARENA_MAX": str(arenas_max()),
}
LAUNCHER = "import sys; from procsv.cli.main import main; sys.exit(main())"  # what the console script `procsv` does


class TrialFailed(Exception):
    """A measured process ended with an error; its last output is in the text."""


def procsv_command(*args: str) -> list[str]:
    return [sys.executable, "-c", LAUNCHER, *args]


def environment() -> dict[str, str]:
    """Return our environment without accelerators and TensorFlow's start-up messages."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TF_ENABLE_ONEDNN_OPTS": "0"}
    return {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a directory that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="procsv-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextlib.contextmanager
def started(
    argv: list[str], log: Path, cwd: Path | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `argv` in a session of its own, with its output in `log`; end it and all its descendants
    at the end.

    `variables`: added to our environment.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**environment(), **(variables or {})},
            cwd=cwd,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end_tree(process)


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to `process`, its group and its descendants, in any group."""
    try:
        tree = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        tree = []
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.poll() is None:  # it is a zombie or alive, so the pid is still its own
            os.killpg(process.pid, signal.SIGKILL)
    for each in tree:
        with contextlib.suppress(psutil.Error):
            each.kill()
    process.wait()
    psutil.wait_procs(tree, timeout=END_S_MAX)


def clear(logdir: Path) -> None:
    """Remove what a run leaves that was killed with all its processes, as `end_tree` does."""
    paths = find_paths(logdir)
    for folder in (paths.shm_dir, paths.run_dir):
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def cleared_unless_ended(logdir: Path) -> Iterator[None]:
    """Call `clear` after an error or Ctrl-C, when the processes were killed."""
    try:
        yield
    except BaseException:
        clear(logdir)
        raise


def run_trial(trial: Trial, variables: Mapping[str, str] | None = None) -> Result:
    """Measure in a process and a logdir of its own; TrialFailed with its last output.

    `variables`: added to our environment.
    """
    with scratch() as folder:
        logdir = folder / "logdir"
        log = folder / "output.log"
        asked = dataclasses.asdict(trial) | {"logdir": str(logdir)}
        argv = [sys.executable, "-m", "scripts.benchmarks.trial", json.dumps(asked)]
        with cleared_unless_ended(logdir), started(argv, log, cwd=folder, variables=variables) as process:
            try:
                code = process.wait(TRIAL_S_MAX)
            except subprocess.TimeoutExpired:
                raise TrialFailed(f"{trial.arm}: no end after {TRIAL_S_MAX:.0f} s\n{tail(log)}") from None
        if code:
            raise TrialFailed(f"{trial.arm}: exit code {code}\n{tail(log)}")
        check_nothing_left(logdir)
        result: Result = json.loads(log.read_text(errors="replace").rstrip().rpartition("\n")[2])
        return result


def tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def check_nothing_left(logdir: Path) -> None:
    """Raise TrialFailed if an ended run left sockets, locks or shared memory, which must not be
    hidden by removing them.
    """
    paths = find_paths(logdir)
    left = [
        path for folder in (paths.run_dir, paths.shm_dir) if folder.exists() for path in (folder, *folder.iterdir())
    ]
    if left:
        held = FileLock(paths.run_lock).is_held()
        raise TrialFailed(f"left behind{' (still running)' if held else ''}: {', '.join(map(str, left))}")

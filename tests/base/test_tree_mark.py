"""A mark in the environment finds every process of a run's tree and spares all others."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from procsv.base.system.tree_mark import VARIABLE, add_mark, find_marked, is_of_run, remove_mark
from tests.support import own_processes

MARK = f"mark-{os.getpid()}"
STRANGER = 54321
LIVES = ("/bin/sh", "-c", "echo lives; read end")  # any user may start it; during its exec the mark cannot be read


@contextlib.contextmanager
def living(
    environment: dict[str, str] | None = None, user: int | None = None, within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Start a process and wait until it has written its first line."""
    given = {**os.environ, **(environment or {})}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*within, *LIVES], env=given, stdin=pipe, stdout=pipe, text=True, user=user, cwd="/"
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def found(mark: str = MARK) -> set[int]:
    marked = find_marked(mark)
    for process in marked:
        process.close()
    return {process.pid for process in marked}


def test_a_nested_run_is_found_by_both_marks_and_carries_each_once() -> None:
    inner = add_mark(add_mark(add_mark({"A": "1"}, "outer"), "inner"), "outer")

    assert inner == {"A": "1", VARIABLE: "inner:outer"}
    assert remove_mark(inner, "outer") == {"A": "1", VARIABLE: "inner"}
    assert remove_mark(add_mark({"A": "1"}, "outer"), "outer") == {"A": "1"}


def test_only_a_process_with_exactly_that_mark_is_found() -> None:
    with (
        living(add_mark({}, MARK)) as marked,
        living(add_mark(add_mark({}, MARK), "inner")) as nested,
        living(add_mark({}, MARK + "0")),
        living({"PROCSV_LOGDIR": MARK}),
        living(),
    ):
        assert found() == {marked.pid, nested.pid}


def test_a_launch_from_within_the_tree_spares_itself_and_its_ancestors() -> None:
    code = (
        "import os, subprocess, sys\n"
        "from procsv.base.system.tree_mark import find_marked\n"
        f"print(sorted(one.pid for one in find_marked({MARK!r})), flush=True)\n"
    )
    with living(add_mark({}, MARK)) as other:
        command = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
        done = subprocess.run(
            [sys.executable, "-c", command], env=add_mark(os.environ, MARK), capture_output=True, text=True, check=True
        )
    assert done.stdout == f"[{other.pid}]\n"


def test_another_users_process_is_never_found() -> None:
    user = STRANGER if os.geteuid() == 0 else None
    with living(add_mark({}, MARK), user=user) as process:
        assert found() == (set() if user else {process.pid})


@pytest.mark.skipif(bool(own_processes.why_not()), reason=own_processes.why_not())
def test_a_process_in_another_mount_namespace_is_never_found() -> None:
    with living(add_mark({}, MARK), within=("unshare", "--mount")), living(add_mark({}, MARK)) as near:
        assert found() == {near.pid}


MARKED, BARE = f"PATH=/bin\0{VARIABLE}=outer:{MARK}\0".encode(), b"PATH=/bin\0"


@pytest.mark.parametrize(
    ("environ", "holds_lock", "is_init", "is_ours"),
    [
        (MARKED, False, True, True),
        (MARKED, False, False, True),
        (BARE, True, True, True),  # it inherited a descriptor of the run's lock
        (BARE, False, True, False),  # `kubectl exec`
        (BARE, False, False, False),  # left by a command of --on-event
        (b"", False, True, False),
        (b"", False, False, True),  # a daemon of the program with an empty environment
        (b"\0\0", False, False, True),
        (f"{VARIABLE}={MARK}0\0X{VARIABLE}={MARK}\0".encode(), False, True, False),
    ],
    ids=itertools.count(),  # the mark contains the collecting process's pid, and workers must agree on ids
)
def test_an_orphan_adopted_by_the_watchdog_belongs_to_the_run_by_its_id_or_its_lock(
    environ: bytes, holds_lock: bool, is_init: bool, is_ours: bool
) -> None:
    assert is_of_run(environ, MARK, holds_lock=holds_lock, is_init=is_init) is is_ours

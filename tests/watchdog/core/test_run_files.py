"""Lost directories, sockets and locks are noticed, reported and restored."""

from __future__ import annotations

from procsv.base.identity import CHECKPOINT, SUMMARY, WATCHDOG
from procsv.watchdog.core.actions import Action, RestoreFile, Say, WriteEntry
from procsv.watchdog.core.events import FileState
from procsv.watchdog.core.run_files import LOCK, LOGDIR, RUN_DIR, SOCKET, RunFilesWatch
from tests.support.journal import an_entry
from tests.support.naming import Naming

DIRECTORY = FileState(RUN_DIR, "/run/x", (1, 1))
OURS = FileState(LOCK, "/run/x/run.lock", (1, 2))
THEIRS = FileState(SOCKET, "/run/x/checkpoint.sock", (1, 3), CHECKPOINT)
ALL = (DIRECTORY, OURS, THEIRS)


def gone(state: FileState) -> FileState:
    return FileState(state.what, state.path, None, state.owner, state.is_reported_elsewhere)


def anew(state: FileState) -> FileState:
    return FileState(state.what, state.path, (2, 9), state.owner, state.is_reported_elsewhere)


def journaled(actions: list[Action]) -> list[tuple[str, str]]:
    return [(action.entry.event, action.entry.fields()["path"]) for action in actions if isinstance(action, WriteEntry)]


def to_restore(actions: list[Action]) -> list[str]:
    return [action.path for action in actions if isinstance(action, RestoreFile)]


def said(actions: list[Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Say)]


def seen(*states: FileState) -> RunFilesWatch:
    watch = RunFilesWatch()
    assert watch.check_files(states, 0.0) == []
    return watch


def test_a_file_missing_at_the_first_look_is_lost() -> None:
    assert journaled(RunFilesWatch().check_files([DIRECTORY, gone(OURS)], 0.0)) == [("ground_lost", OURS.path)]


def test_what_stays_is_not_news() -> None:
    watch = seen(*ALL)
    assert watch.check_files(ALL, 2.0) == []
    assert watch.error == ""


def test_a_lost_directory_is_one_loss_and_is_back_when_everything_in_it_is() -> None:
    watch = seen(*ALL)
    lost = watch.check_files([gone(state) for state in ALL], 2.0)
    assert journaled(lost) == [("ground_lost", "/run/x")]
    assert to_restore(lost) == ["/run/x", "/run/x/run.lock"], "what a service has, it makes itself"
    assert "/run/x is gone" in watch.error
    assert journaled(watch.check_files([anew(DIRECTORY), anew(OURS), gone(THEIRS)], 2.5)) == []
    back = watch.check_files([anew(state) for state in ALL], 4.0)
    assert journaled(back) == [("ground_restored", "/run/x")]
    told = {"what": RUN_DIR, "path": "/run/x", "seconds": 2.0}
    assert back[0] == WriteEntry(an_entry("ground_restored", **told), WATCHDOG, 1)
    assert (watch.error, watch.check_files([anew(state) for state in ALL], 6.0)) == ("", [])


def test_a_replaced_directory_is_lost_and_restored() -> None:
    watch = seen(DIRECTORY)
    assert journaled(watch.check_files([anew(DIRECTORY)], 2.0)) == [
        ("ground_lost", "/run/x"),
        ("ground_restored", "/run/x"),
    ]


def test_a_single_socket_is_its_own_loss() -> None:
    watch = seen(*ALL)
    assert watch.check_files([DIRECTORY, OURS, gone(THEIRS)], 1.5) == [], "its process may just be dying"
    assert not watch.is_settled
    lost = watch.check_files([DIRECTORY, OURS, gone(THEIRS)], 2.0)
    assert (journaled(lost), to_restore(lost)) == ([("ground_lost", THEIRS.path)], [])
    assert journaled(watch.check_files([DIRECTORY, OURS, anew(THEIRS)], 3.0)) == [("ground_restored", THEIRS.path)]
    assert watch.is_settled


def test_a_socket_that_is_back_before_the_second_look_was_lost_and_restored() -> None:
    watch = seen(*ALL)
    watch.check_files([DIRECTORY, OURS, gone(THEIRS)], 1.5)
    assert journaled(watch.check_files([DIRECTORY, OURS, anew(THEIRS)], 2.0)) == [
        ("ground_lost", THEIRS.path),
        ("ground_restored", THEIRS.path),
    ]


def test_a_service_that_was_just_dying_has_lost_nothing() -> None:
    watch = seen(*ALL)
    watch.check_files([DIRECTORY, OURS, gone(THEIRS)], 1.5)
    watch.forget_files(CHECKPOINT, ALL)
    assert watch.is_settled
    assert watch.check_files([DIRECTORY, OURS], 2.0) == []
    assert watch.check_files([DIRECTORY, OURS, anew(THEIRS)], 4.0) == []


def test_a_service_that_ends_removes_its_own_files() -> None:
    watch = seen(*ALL)
    for now_s in (1.5, 2.0):
        watch.check_files([DIRECTORY, OURS, gone(THEIRS)], now_s)
    assert watch.error
    watch.forget_files(SUMMARY, ALL)
    assert watch.error, "another's"
    watch.forget_files(CHECKPOINT, ALL)
    assert watch.error == ""
    assert watch.check_files([DIRECTORY, OURS, anew(THEIRS)], 3.0) == []


def test_a_failed_restore_is_reported_once_and_retried_at_each_look() -> None:
    watch = seen(DIRECTORY)
    watch.check_files([gone(DIRECTORY)], 2.0)
    assert len(said(watch.not_restored("/run/x", "No space left on device"))) == 1
    assert to_restore(watch.check_files([gone(DIRECTORY)], 4.0)) == ["/run/x"]
    assert watch.not_restored("/run/x", "No space left on device") == []
    assert "No space left on device" in watch.error


def test_what_others_report_is_only_journaled() -> None:
    logdir = FileState(LOGDIR, "/logdir", (1, 7), is_reported_elsewhere=True)
    watch = seen(logdir)
    lost = watch.check_files([gone(logdir)], 2.0)
    assert (journaled(lost), said(lost)) == ([("ground_lost", "/logdir")], [])
    assert not watch.is_settled
    assert watch.not_restored("/logdir", "it is away") == []
    assert "it is away" in watch.error
    back = watch.check_files([logdir], 4.0)
    assert (journaled(back), said(back)) == ([("ground_restored", "/logdir")], [])


def test_a_failed_restore_in_a_lost_directory_is_not_news() -> None:
    watch = seen(*ALL)
    watch.check_files([gone(state) for state in ALL], 2.0)
    assert watch.not_restored(OURS.path, "No such file or directory") == []


def test_a_loss_and_its_end_are_reported_and_journaled_as_the_watchdogs() -> None:
    watch = seen(DIRECTORY)
    assert watch.check_files([gone(DIRECTORY)], 2.0)[:2] == [
        WriteEntry(an_entry("ground_lost", what=RUN_DIR, path="/run/x"), WATCHDOG, 1),
        Say(Naming("directory /run/x"), is_bad=True),
    ]
    assert watch.not_restored("/run/x", "Read-only file system") == [
        Say(Naming("directory /run/x ", ": Read-only file system; "), is_bad=True)
    ]
    assert watch.check_files([anew(DIRECTORY)], 14.34567) == [
        WriteEntry(an_entry("ground_restored", what=RUN_DIR, path="/run/x", seconds=12.346), WATCHDOG, 1),
        Say(Naming("directory /run/x ", " 12 s"), is_bad=False),
    ]

"""Each checkpoint and each change of a failing save is journaled and reported once."""

from __future__ import annotations

from procsv.base.errors import strip_numbers
from procsv.base.identity import CHECKPOINT
from procsv.ipc.messaging.checkpoint_messages import Durable, SaveFailed, Unwritable
from procsv.watchdog.core.actions import Action, Say, WriteEntry
from procsv.watchdog.core.services import REMEMBERED_MAX, Saves
from tests.support.journal import an_entry
from tests.support.naming import Naming


def durable(sequence: int = 1, step: int = 10, time: float = 1.0) -> Durable:
    path = f"/l/model.ckpt-{step}"
    return Durable(sequence, step, 1, path, "manual", 100, 0.5, (path,), time)


def failed(error: str, sequence: int = 1, step: int = 10) -> SaveFailed:
    return SaveFailed(sequence, step, error, retry_in=2.0)


def journaled(actions: list[Action]) -> list[str]:
    return [action.entry.event for action in actions if isinstance(action, WriteEntry)]


def test_a_checkpoint_is_news_once_and_two_saves_under_one_name_are_two() -> None:
    saves = Saves()
    assert saves.is_news(durable(0, 10, 1.0))
    assert not saves.is_news(durable(0, 10, 1.0))
    assert saves.is_news(durable(0, 10, 2.0))
    assert saves.is_news(durable(7, 10, 2.0))
    for number in range(2 * REMEMBERED_MAX):
        assert saves.is_news(durable(number + 8))
    assert not saves.is_news(durable(2 * REMEMBERED_MAX + 7)), "the newest are remembered"
    assert saves.is_news(durable(8)), "the oldest are forgotten"


def test_the_journal_has_everything_about_a_checkpoint_and_its_time_to_a_millisecond() -> None:
    news = Durable(1, 10, 3, "/l/model.ckpt-10", "manual", 100, 0.12345, (), 1.0)
    (entry,) = Saves().durable(news, 2)

    fields = {"step": 10, "path": "/l/model.ckpt-10", "reason": "manual", "bytes": 100, "seconds": 0.123, "trainer": 3}
    assert entry == WriteEntry(an_entry("checkpoint_durable", **fields), CHECKPOINT, 2)


def test_a_failure_is_journaled_once_for_each_change_and_shown_with_the_next_retry() -> None:
    saves = Saves()
    full = "no room: {} MiB free, 2.5 GiB needed"
    first = saves.failed(failed(full.format("40.0")), 1, 100.0)
    assert journaled(first) == ["checkpoint_failed"]
    assert [a.is_bad for a in first if isinstance(a, Say)] == [True]
    assert saves.try_s == 102.0
    assert saves.failed(failed(full.format("39.5"), sequence=2, step=20), 1, 102.0) == [], "the same trouble"
    assert saves.error == full.format("39.5"), "as it is now"
    assert journaled(saves.failed(failed("[Errno 5] Input/output error", 3), 1, 104.0)) == ["checkpoint_failed"]


def test_a_failure_is_reported_with_what_is_on_disk() -> None:
    (said,) = (one.text for one in Saves().failed(failed("full"), 1, 0.0, 7) if isinstance(one, Say))
    assert said == Naming("step 10 ", "full", "step 7 ")
    (said,) = (one.text for one in Saves().failed(failed("full"), 1, 0.0) if isinstance(one, Say))
    assert said == Naming("step 10 ", "full", "nothing ")


def test_a_successful_save_ends_the_failure_and_the_next_one_is_news_again() -> None:
    saves = Saves()
    saves.failed(failed("disk full"), 1, 0.0)
    own = saves.durable(durable(sequence=0), 1)
    assert journaled(own) == ["checkpoint_durable"]
    assert saves.error == "disk full", "a save of the program's own proves nothing of ours"
    out = saves.durable(durable(), 1)
    assert journaled(out) == ["checkpoint_durable"]
    assert [a.text for a in out if isinstance(a, Say)] == [Naming("step 10")]
    assert (saves.error, saves.try_s) == ("", None)
    assert journaled(saves.failed(failed("disk full"), 1, 9.0)) == ["checkpoint_failed"]


def test_a_directory_that_goes_and_comes_back_is_reported_both_times_and_its_failing_saves_add_nothing() -> None:
    saves = Saves()
    gone = "/l is gone"
    assert journaled(saves.unwritable(Unwritable(gone), 1, 70)) == ["checkpoint_failed"]
    assert saves.failed(failed(gone), 1, 0.0) == []
    assert saves.error == gone
    back = saves.unwritable(Unwritable(""), 1, 80)
    assert [type(a) for a in back] == [Say]
    assert saves.error == gone, "as long as no save has succeeded"
    saves.durable(durable(), 1)
    assert saves.error == ""
    assert saves.unwritable(Unwritable(""), 1, 90) == []


def test_a_directory_that_recovers_forgets_its_trouble_unless_saves_still_fail() -> None:
    saves = Saves()
    gone = "/l is gone"
    for step in (70, 80):
        assert journaled(saves.unwritable(Unwritable(gone), 1, step)) == ["checkpoint_failed"]
        saves.unwritable(Unwritable(""), 1, step)
    saves.failed(failed(gone), 1, 0.0)
    saves.unwritable(Unwritable(""), 1, 90)
    assert saves.unwritable(Unwritable(gone), 1, 95) == [], "one that never got well"


def test_the_summary_of_an_error_leaves_its_numbers_out() -> None:
    assert strip_numbers("no room in /a/b: 40.0 KiB free, 3 needed") == strip_numbers(
        "no room in /a/b: 1 GiB free, 12 needed"
    )
    assert strip_numbers("Input/output error") != strip_numbers("No space left on device")


def test_two_alternating_errors_are_each_reported_once_until_saving_works_again() -> None:
    saves = Saves()
    assert journaled(saves.unwritable(Unwritable("/l is gone"), 1, 5)) == ["checkpoint_failed"]
    assert journaled(saves.failed(failed("[Errno 2] No such file or directory: '/l'"), 1, 0.0)) == ["checkpoint_failed"]
    assert saves.failed(failed("/l is gone", 2, 20), 1, 1.0) == []
    saves.durable(durable(sequence=3), 1)
    assert journaled(saves.failed(failed("/l is gone", 4, 30), 1, 2.0)) == ["checkpoint_failed"]

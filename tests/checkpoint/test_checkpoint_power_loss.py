"""After a kill or a power loss at any disk call of a commit, every acknowledged checkpoint is
there, bit for bit.

Each scenario runs once on a real directory while its disk calls are recorded. For each prefix of
the calls, the test lays out what a kill and a power loss may have left, and starts a service there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from procsv.base.system.system_clock import SystemClock
from procsv.services.checkpoint.format.state_file import GarbledStateFile, read_state
from procsv.services.checkpoint.store.scan import examine, scan_directory
from tests.support.commits import Acknowledged, Commits
from tests.support.power_loss import Op, Recording, Tree, aftermaths, write_tree


@dataclass(frozen=True)
class Scenario:
    before: list[int] = field(default_factory=list)  # steps saved before the disk is watched
    watched: list[int] = field(default_factory=list)  # and steps saved while it is watched
    named: bool = True  # each step has its own name
    keep: int = 5
    staged: bool = False


SCENARIOS = {
    "the first two": Scenario([], [1, 2]),
    "ones that push out the oldest": Scenario([1, 2], [4, 5], keep=2),
    "one that pushes out all older ones": Scenario([1, 2], [4], keep=1),
    "more shards": Scenario([], [2, 3], keep=1),
    "files of the trainer's": Scenario([1], [2, 3], keep=1, staged=True),
    "the same name again": Scenario([2], [2]),
    "a name without a step": Scenario([1], [2], named=False),
    "more shards under the same name": Scenario([1], [3], named=False),
    "fewer shards under the same name": Scenario([3], [4], named=False),
}


@dataclass
class Played:
    """The recorded calls and what was acknowledged between them."""

    case: Commits
    recording: Recording
    before: Acknowledged | None
    marks: list[Acknowledged] = field(default_factory=list)

    def at(self, count: int) -> tuple[Acknowledged | None, Acknowledged | None]:
        """Return what was acknowledged after that many calls, and what came next."""
        said = sum(op.what == "mark" for op in self.recording.ops[:count])
        known = [self.before, *self.marks]
        return known[said], known[said + 1] if said + 1 < len(known) else None


@pytest.fixture
def make_case(run: Any, plan: Any, publish: Any, directory: Path, tmp_path: Path) -> Callable[[Scenario], Commits]:
    def make(scenario: Scenario) -> Commits:
        (tmp_path / "meta").write_bytes(b"graph")
        saver_plan = plan(
            save_path=str(directory / "model.ckpt"), max_to_keep=scenario.keep, meta_path=str(tmp_path / "meta")
        )
        case = Commits(run, saver_plan, publish, scenario.named, scenario.staged)
        case.save_all(scenario.before)
        return case

    return make


GUARDS = ("the first two", "ones that push out the oldest", "fewer shards under the same name")  # each change


@pytest.fixture(params=[pytest.param(name, marks=[] if name in GUARDS else pytest.mark.long) for name in SCENARIOS])
def played(request: pytest.FixtureRequest, make_case: Any) -> Played:
    scenario = SCENARIOS[request.param]
    case: Commits = make_case(scenario)
    with Recording(case.logdir) as recording:
        done = Played(case, recording, case.told)
        store = case.open_store()
        for step in scenario.watched:
            case.commit(step, store)
            assert case.told is not None
            recording.mark(case.told)
            done.marks.append(case.told)
    assert recording.unseen == [], "the disk was changed past its gate"
    return done


def always(case: Commits, told: Acknowledged | None, to_come: Acknowledged | None = None) -> Callable[[int], Any]:
    return lambda _: case.check(told, to_come)


def has_intent(tree: Tree) -> bool:
    """Return whether there is an intent, or one being written."""
    return any("intent.json" in path for path, _ in tree)


def each_state(
    start: Tree, ops: list[Op], top: Path, check: Callable[[int], Any], checked: set[Tree] | None = None
) -> int:
    """Lay out and check each possible state. Return how many there were.

    States in `checked` were checked before and are skipped; this call adds its own.
    """
    number = 0
    for count, is_power_loss, tree in aftermaths(start, ops):
        if checked is not None:
            if tree in checked:
                continue
            checked.add(tree)
        write_tree(top, tree)
        number += 1
        try:
            check(count)
        except Exception as error:
            how = "the power was lost" if is_power_loss else "the service was killed"
            story = "\n".join(f"{n}: {op.what} {op.path} {op.node}" for n, op in enumerate(ops[:count], 1))
            names = "\n".join(f"{path}: {len(data) if data is not None else '/'}" for path, data in tree)
            error.add_note(f"{how} after\n{story}\nand left\n{names}")
            raise
    return number


def test_an_acknowledged_checkpoint_outlives_a_kill_and_a_power_loss_after_any_call(played: Played) -> None:
    case, ops = played.case, played.recording.ops

    def check(count: int) -> None:
        told, to_come = played.at(count)
        if case.named and (told is None or to_come is None or told.path != to_come.path):
            case.check_what_tensorflow_sees(told, to_come)
        case.check(told, to_come)

    number = each_state(played.recording.start, ops, case.logdir, check)
    assert number > 100, "the disk was not watched"


def test_a_recovery_that_is_interrupted_after_any_call_is_resumed(played: Played) -> None:
    case, ops = played.case, played.recording.ops
    number = 0
    checked: dict[Any, set[Tree]] = {}  # by what must be found there: two recoveries pass through many equal states
    with_intent = [state for state in aftermaths(played.recording.start, ops) if has_intent(state[2])]
    for count, _, tree in with_intent[:: max(1, len(with_intent) // 6)]:
        told, to_come = played.at(count)
        write_tree(case.logdir, tree)
        with Recording(case.logdir) as recovery:
            case.search()
        assert recovery.unseen == [], "the disk was changed past its gate"
        check, done = always(case, told, to_come), checked.setdefault((told, to_come), set())
        number += each_state(recovery.start, recovery.ops, case.logdir, check, done)
    assert number > 100, "nothing was recovered"


def test_moving_a_damaged_checkpoint_aside_is_resumed_after_any_call(make_case: Any) -> None:
    case: Commits = make_case(Scenario([1, 2, 4]))
    damaged = Path(str(case.logdir / "model.ckpt-4") + ".data-00000-of-00001")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    case.bad = {"model.ckpt-4"}
    older = Acknowledged(
        2, str(case.logdir / "model.ckpt-2"), tuple(str(case.logdir / f"model.ckpt-{n}") for n in (1, 2))
    )
    with Recording(case.logdir) as recording:
        found = case.search()
    assert [Path(r.path).name for r in found.rejected] == ["model.ckpt-4"]
    assert recording.unseen == [], "the disk was changed past its gate"

    number = each_state(recording.start, recording.ops, case.logdir, always(case, older))

    assert number > 20, "the disk was not watched"


def test_a_users_save_made_without_a_service_stays_the_latest(make_case: Any) -> None:
    case: Commits = make_case(Scenario([1, 2], keep=2))
    with Recording(case.logdir) as recording:
        case.commit(4, case.open_store())
    whole = [tree for _, is_power_loss, tree in aftermaths(recording.start, recording.ops) if not is_power_loss]
    begun = [tree for tree in whole if any(path.endswith("/intent.json") for path, _ in tree)]
    assert len(begun) > 10, "the disk was not watched"
    mine = str(case.logdir / "model.ckpt-7")
    for tree in begun:
        write_tree(case.logdir, tree)
        case.save_as_a_user(7)

        found = case.search()

        assert found.checkpoint is not None
        assert (found.checkpoint.path, found.rejected) == (mine, ())
        assert found.kept[-2:] == (str(case.logdir / "model.ckpt-4"), mine)
        for path in found.kept:
            case.check_whole(path)


@pytest.mark.parametrize(
    ("left_out", "named"),
    [
        (".data-", True),
        (".index", True),
        ("intent.json", False),
        ("manifest.json", True),
        (".draft.checkpoint", True),
        ("", True),
    ],
)
def test_the_simulated_disk_finds_every_missing_fsync(make_case: Any, left_out: str, named: bool) -> None:
    case: Commits = make_case(Scenario([1], keep=1, named=named))
    before = case.told
    with Recording(case.logdir) as recording:
        case.commit(2, case.open_store())
    unsynced = {op.node for op in recording.ops if op.what == "create" and left_out in op.path} if left_out else {0}
    ops = [op for op in recording.ops if op.what != "fsync" or op.node not in unsynced]
    assert len(ops) < len(recording.ops), "nothing was left out"

    def check(count: int) -> None:
        if named:
            case.check_what_tensorflow_sees(before, case.told)
        case.check(before if count < len(ops) else case.told, case.told)

    with pytest.raises((AssertionError, GarbledStateFile)):
        each_state(recording.start, ops, case.logdir, check)


def test_a_users_save_that_the_service_vouched_for_outlives_a_power_loss(make_case: Any) -> None:
    case: Commits = make_case(Scenario([1, 2], keep=2))
    before = case.told
    with Recording(case.logdir) as recording:
        store = case.open_store()
        store.list_checkpoints(case.plan)
        case.save_as_a_user(7)
        (sighting,) = scan_directory(case.plan).external
        taken = store.adopt_checkpoint(case.plan, examine(sighting, SystemClock()), True, 1)
        assert taken.durable is not None
        recording.mark(taken)
    assert recording.unseen == [], "the disk was changed past its gate"
    state = read_state(case.logdir / "checkpoint")
    assert state is not None
    after = Acknowledged(7, state.latest, state.all_paths)

    def check(count: int) -> None:
        is_vouched_for = count == len(recording.ops)
        # A checkpoint being deleted leaves the list last, and its remains go once it has.
        case.bad = set() if is_vouched_for else {"model.ckpt-7", "model.ckpt-1"}
        case.check(after if is_vouched_for else before, after)

    number = each_state(recording.start, recording.ops, case.logdir, check)

    assert number > 50, "the disk was not watched"

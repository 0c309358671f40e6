"""`procsv launch` checks the options for several tasks before anything starts."""

from pathlib import Path

import pytest

from procsv.base.errors import UserError
from procsv.base.identity import TaskId
from procsv.faults.plan import Plan, aim_at_tasks
from procsv.faults.plan_parser import parse_fault
from tests.support.launched import procsv

TASKS = tuple(map(TaskId.parse, ("chief", "worker.0", "ps.0")))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--no-chief",), "--workers"),
        (("--no-chief", "--ps", "1"), "--workers"),
        (("--ps", "1", "--standby", "hot"), "use --standby warm"),
        (("--workers", "-1"), "'--workers'"),
        (("--workers", "1", "--fault", "kill worker.1 at step 5"), "this run has chief, worker.0"),
        (("--fault", "kill worker.1 at step 5"), "this run has trainer"),
        (("--restart", "gang"), "--workers"),
        (("--restart", "gang", "--no-chief", "--workers", "1"), "--restart gang"),
        (("--workers", "2", "--consistent-snapshots"), "--ps"),
        (("--min-workers", "1"), "--min-workers"),
        (("--ps", "1", "--min-workers", "0"), "--min-workers"),
        (("--workers", "2", "--min-workers", "3"), "--workers is 2"),
        (("--workers", "2", "--min-workers", "-1"), "'--min-workers'"),
        (("--workers", "2", "--min-workers", "1", "--restart", "gang"), "--restart gang"),
        (("--restart", "all", "--workers", "2"), "'auto', 'task', 'gang'"),
        (("--fault", "kill worker at step 5"), "target 'worker'"),
    ],
)
def test_impossible_tasks_are_refused_with_what_to_change(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise AssertionError")
    answer = procsv("launch", *options, "--logdir", str(tmp_path / "run"), str(tmp_path / "train.py"))
    assert answer.returncode == 2
    assert said in " ".join(answer.stderr.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tasks]\nworkers = 2", "'tasks'"),
        ("standby = 'hot'\nworkers = 2", "use --standby warm"),
        ("restart = 'gang'", "--restart gang"),
        ("workers = 2\nconsistent-snapshots = true", "--ps"),
        ("workers = 2\nmin-workers = 3", "--min-workers 3"),
        ("min-workers = 1", "--min-workers"),
        ("chief = false", "--workers"),
    ],
)
def test_tasks_from_a_file_are_checked_like_those_on_the_command_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise AssertionError")
    (tmp_path / "run.toml").write_text(text)
    options = ("--config", str(tmp_path / "run.toml"), "--logdir", str(tmp_path / "run"))
    answer = procsv("launch", *options, str(tmp_path / "train.py"))
    assert answer.returncode == 2
    assert said in " ".join(answer.stderr.split())


def test_a_fault_for_the_trainer_goes_to_the_task_whose_state_is_saved() -> None:
    plan = Plan((parse_fault("kill trainer at step 5"), parse_fault("preempt worker.0 with grace 3s after 5s")))
    assert [str(fault) for fault in aim_at_tasks(plan, TASKS).faults] == [
        "kill chief at step 5",
        "preempt worker.0 with grace 3s after 5s",
    ]
    assert aim_at_tasks(Plan(plan.faults[:1]), ()) == Plan(plan.faults[:1])
    with pytest.raises(UserError, match="has trainer"):
        aim_at_tasks(plan, ())


def test_every_fault_of_the_trainer_can_be_aimed_at_a_task() -> None:
    for text in (
        "kill ps.0 at step 9",
        "stop ps.0 for 20s after 3s",
        "segfault worker.2 at step 3",
        "hang chief at step 2",
    ):
        assert str(parse_fault(text)) == text
    with pytest.raises(UserError, match=r"fill .*logdir"):
        parse_fault("fill worker.0 for 3s")

"""What `procsv launch` says of several tasks before anything starts."""

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
        (("--no-chief",), "say how many there are with --workers"),
        (("--no-chief", "--ps", "1"), "say how many there are with --workers"),
        (("--ps", "1", "--standby", "hot"), "use --standby warm"),
        (("--workers", "-1"), "'--workers'"),
        (("--workers", "1", "--fault", "kill worker.1 at step 5"), "this run has chief, worker.0"),
        (("--fault", "kill worker.1 at step 5"), "this run has trainer"),
        (("--restart", "gang"), "say how many with --workers"),
        (("--restart", "gang", "--no-chief", "--workers", "1"), "say how many with --workers"),
        (("--workers", "2", "--consistent-snapshots"), "say how many there are with --ps"),
        (("--min-workers", "1"), "say how many with --workers"),
        (("--ps", "1", "--min-workers", "0"), "say how many with --workers"),
        (("--workers", "2", "--min-workers", "3"), "--min-workers 3 is more than there are: --workers is 2"),
        (("--workers", "2", "--min-workers", "-1"), "'--min-workers'"),
        (("--workers", "2", "--min-workers", "1", "--restart", "gang"), "cannot go with --restart gang"),
        (("--restart", "all", "--workers", "2"), "'all' is not one of 'auto', 'task', 'gang'"),
        (("--fault", "kill worker at step 5"), "there is no target 'worker'"),
    ],
)
def test_tasks_that_cannot_be_are_refused_with_what_to_change(
    options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("raise AssertionError")
    answer = procsv("launch", *options, "--logdir", str(tmp_path / "run"), str(tmp_path / "train.py"))
    assert answer.returncode == 2
    assert said in " ".join(answer.stderr.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tasks]\nworkers = 1\nps = 1\nchief = false\nstandby = 'hot'", "there is no 'standby' in [tasks]"),
        ("tasks = 3", "[tasks] is a table"),
        ("workers = 1\n[tasks]\nworkers = 2", "workers stands twice"),
        ("standby = 'hot'\n[tasks]\nworkers = 2", "use --standby warm"),
        ("[tasks]\nrestart = 'gang'", "say how many with --workers"),
        ("[tasks]\nworkers = 2\nconsistent-snapshots = true", "say how many there are with --ps"),
        ("[tasks]\nworkers = 2\nmin-workers = 3", "--min-workers 3 is more than there are"),
        ("[tasks]\nmin-workers = 1", "say how many with --workers"),
        ("[tasks]\nchief = false", "say how many there are with --workers"),
    ],
)
def test_tasks_stand_in_a_table_of_the_file(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise AssertionError")
    (tmp_path / "run.toml").write_text(text)
    options = ("--config", str(tmp_path / "run.toml"), "--logdir", str(tmp_path / "run"))
    answer = procsv("launch", *options, str(tmp_path / "train.py"))
    assert answer.returncode == 2
    assert said in " ".join(answer.stderr.split())


def test_a_fault_for_the_trainer_is_for_the_task_whose_state_is_saved() -> None:
    plan = Plan((parse_fault("kill trainer at step 5"), parse_fault("preempt worker.0 with grace 3s after 5s")))
    assert [str(fault) for fault in aim_at_tasks(plan, TASKS).faults] == [
        "kill chief at step 5",
        "preempt worker.0 with grace 3s after 5s",
    ]
    assert aim_at_tasks(Plan(plan.faults[:1]), ()) == Plan(plan.faults[:1])
    with pytest.raises(UserError, match=r"this run has trainer"):
        aim_at_tasks(plan, ())


def test_every_fault_of_the_trainer_can_be_one_of_a_task() -> None:
    for text in (
        "kill ps.0 at step 9",
        "stop ps.0 for 20s after 3s",
        "segfault worker.2 at step 3",
        "hang chief at step 2",
    ):
        assert str(parse_fault(text)) == text
    with pytest.raises(UserError, match="fill is for logdir"):
        parse_fault("fill worker.0 for 3s")

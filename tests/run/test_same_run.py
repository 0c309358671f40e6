"""A launch resumes only the run with the same target, arguments and program files."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.run.test_adopted_logdir import LAUNCH
from tests.support.launched import Launched, launched, procsv
from tests.support.naming import Naming
from tests.support.programs import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.fault

# Trains NumPy arrays for helper.STEPS steps, in the directory named by its arguments if there are
# two.
TRAIN = """
import sys, helper
from procsv.training.runtime.context import current
from procsv.training.runtime.program_logdir import settle_logdir
from tests.support.numpy_training import train_until

print("program begins with", *sys.argv[1:], flush=True)
if len(sys.argv) == 3:
    print("uses", settle_logdir(current(), sys.argv[2] + sys.argv[1]), flush=True)
if sys.argv[1] == "0":
    sys.exit("0 is no rate")
train_until(lambda step: step >= helper.STEPS, 0.001)
import later
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "helper.py").write_text("STEPS = 20\n")
    (tmp_path / "later.py").write_text("")
    return tmp_path


@contextlib.contextmanager
def launch(project: Path, *args: str, to: str = "train", script: str = "train.py") -> Iterator[Launched]:
    """Run `procsv launch ARGS…` with `script` before the first number, where the program's own
    begin, expecting directory `to`.
    """
    first = next(place for place, arg in enumerate(args) if arg[0].isdigit())
    words = [*args[:first], "--standby", "off", script, *args[first:]]
    with launched(
        project / "runs" / to, *words, cwd=project, launcher=(sys.executable, "-c", LAUNCH), PYTHONPATH=str(ROOT)
    ) as run:
        yield run


def run_to_end(project: Path, *args: str, to: str = "train", script: str = "train.py") -> tuple[int, str]:
    """Return the exit code and this launch's output."""
    output = project / "runs" / to
    with launch(project, *args, to=to, script=script) as run:
        before = len(run.said()) if output.exists() else 0
        code = run.wait_end()
        return code, run.said()[before:]


def test_a_complete_run_is_not_restarted_until_the_command_changes(project: Path) -> None:
    code, said = run_to_end(project, "0.1")
    assert code == 0
    assert Naming("training is complete", "step 20") == said

    for script in ("train.py", str(project / "train.py")):
        code, said = run_to_end(project, "0.1", script=script)
        assert code == 0
        assert re.search(r"nothing to do: .* step 20 since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d; `--new` .*`--resume` ", said)
        assert "training is complete" not in said
        assert "program begins" not in said

    code, said = run_to_end(project, "--resume", "0.1")
    assert code == 0
    assert "program begins with 0.1" in said
    assert " no step: " in said
    assert "training is complete" not in said

    code, said = run_to_end(project, "--new", "0.1", to="train-2")
    assert code == 0
    assert Naming("training is complete", "step 20") == said


def test_other_arguments_are_refused_unless_the_logdir_is_named(project: Path) -> None:
    assert run_to_end(project, "0.1")[0] == 0
    code, said = run_to_end(project, "0.01")
    assert code == 2
    assert "`train.py 0.1`" in said
    assert "`train.py 0.01`" in said
    assert "--new" in said
    assert "--logdir" in said
    assert "program begins" not in said

    code, said = run_to_end(project, "--logdir", "runs/train", "0.01")
    assert code == 0
    assert len(re.findall(r"`train.py 0.1`, .* `train.py 0.01`\n", said)) == 1
    assert "program begins with 0.01" in said
    assert run_to_end(project, "0.1")[0] == 2, "the run has those arguments now"


@pytest.mark.parametrize(
    "name",
    [pytest.param("train.py", marks=pytest.mark.long), pytest.param("helper.py", marks=pytest.mark.long), "later.py"],
)
def test_a_complete_run_whose_program_has_changed_is_refused_and_the_file_is_named(project: Path, name: str) -> None:
    assert run_to_end(project, "0.1")[0] == 0
    with (project / name).open("a") as file:
        file.write("# changed\n")
    code, said = run_to_end(project, "0.1")
    assert code == 2
    assert re.search(rf" {name} has changed .* `--new` .*`--resume` ", said)
    assert "program begins" not in said
    code, said = run_to_end(project, "--resume", "0.1")
    assert code == 0
    assert f"changed since attempt 1: {name}\n" in said
    assert "nothing to do" in run_to_end(project, "0.1")[1], "what ran last is what counts"


def test_a_configuration_file_in_the_arguments_is_part_of_the_program_and_what_it_writes_is_not(project: Path) -> None:
    (project / "later.py").write_text("open('results.json', 'a').write('written')\n")
    for name in ("rates.yaml", "results.json"):
        (project / name).write_text("0.1\n")
    arguments = ("0.1", "--config=rates.yaml", "results.json")
    assert run_to_end(project, *arguments)[0] == 0
    assert "written" in (project / "results.json").read_text()
    assert "nothing to do" in run_to_end(project, *arguments)[1]
    (project / "rates.yaml").write_text("0.2\n")
    code, said = run_to_end(project, *arguments)
    assert code == 2
    assert "rates.yaml has changed" in said


def test_an_unfinished_run_resumes_with_a_changed_program_and_names_the_file_at_each_start(project: Path) -> None:
    (project / "helper.py").write_text("STEPS = 10**9\n")
    with launch(project, "0.1") as run:
        run.wait_event("recovered")
        run.wait_for("the record", (run.logdir / "procsv" / "imports.json").exists)
        (project / "helper.py").write_text("STEPS = 10**8\n")
        run.kill("trainer")
        run.wait_event("recovered", 2)
        run.wait_for("the name", lambda: "changed since attempt 1: helper.py" in run.said())

        second = procsv("launch", "--logdir", str(run.logdir), str(project / "train.py"), "0.1")
        assert second.returncode == 73
        for word in (f"process {run.process.pid}", "--new", "--logdir", "procsv status", "procsv stop"):
            assert word in second.stderr

        run.kill("watchdog", 15)
        assert run.wait_end() == 75
    (project / "helper.py").write_text("STEPS = 20\n")
    code, said = run_to_end(project, "0.1")
    assert code == 0
    assert said.count("changed since attempt 2: helper.py\n") == 1


def test_a_program_that_other_arguments_send_elsewhere_is_refused_and_the_run_is_unchanged(project: Path) -> None:
    code, said = run_to_end(project, "--logdir", "runs", "0.1", "runs/lr", to=".")
    assert code == 0
    assert "uses runs/lr0.1" in said
    code, said = run_to_end(project, "--logdir", "runs", "0.01", "runs/lr", to=".")
    assert code == 70
    assert re.search(r"procsv: .*runs/lr0\.01", said)
    assert not re.search(r"^uses ", said, re.MULTILINE), "the program goes no further"
    assert not (project / "runs" / "lr0.01").exists()


def test_arguments_that_the_program_refuses_do_not_become_the_runs_arguments_or_directory(project: Path) -> None:
    assert run_to_end(project, "0", "out/lr")[0] == 70
    code, said = run_to_end(project, "0.1", "out/lr")
    assert code == 0
    assert "uses out/lr0.1" in said


def test_a_logdir_from_a_configuration_file_does_not_permit_other_arguments(project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.procsv]\nlogdir = "runs/train"\n')
    assert run_to_end(project, "0.1")[0] == 0
    code, said = run_to_end(project, "0.01")
    assert code == 2
    assert "procsv launch --logdir runs/train" in said
    code, said = run_to_end(project, "--new", "0.01", to="train-2")
    assert code == 0
    assert Naming("training is complete", "step 20") == said

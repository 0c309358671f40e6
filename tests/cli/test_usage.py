"""The help is grouped, options may come from the environment, and shells complete them."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from procsv.base.run.run_file import write_run
from procsv.cli.main import procsv as group
from procsv.cli.usage.grouped_help import GroupedCommand, name_of
from tests.cli.test_run_file import a_run
from tests.support.launched import environment, procsv

if TYPE_CHECKING:
    from pathlib import Path

HELPED = re.compile(r"^  (?:-h, )?--([a-z-]+)", re.MULTILINE)


def launch() -> GroupedCommand:
    found = group.get_command(click.Context(group), "launch")
    assert isinstance(found, GroupedCommand)
    return found


def all_options() -> set[str]:
    return {name_of(one) for one in launch().get_params(click.Context(launch())) if isinstance(one, click.Option)}


def test_the_help_shows_examples_and_common_options_and_help_all_shows_everything() -> None:
    everything = all_options()
    short, whole = procsv("launch", "--help").stdout, procsv("launch", "--help-all").stdout
    assert set(HELPED.findall(whole)) == everything
    assert set(HELPED.findall(short)) == launch().common & everything
    assert whole.count("--min-kept ") == 2, "itself, and where another option names it"
    titles = ["Examples:", "Run:", "Restarts:", "Hangs and limits:", "Events:", "Faults:"]
    assert [line for line in short.splitlines() if line in titles] == titles


def test_no_option_is_in_two_groups_or_invented() -> None:
    names = [name for names in launch().groups.values() for name in names]
    assert len(names) == len(set(names))
    assert set(names) <= all_options()


def test_an_option_can_be_set_in_the_environment_and_the_command_line_wins(tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing.py")
    refused = procsv("launch", nothing, PROCSV_LAUNCH_GRACE="soon")
    assert (refused.returncode, "--grace" in refused.stderr) == (2, True)
    assert "--grace" not in procsv("launch", "--grace", "5s", nothing, PROCSV_LAUNCH_GRACE="soon").stderr
    assert "'nobody'" in procsv("logs", str(a_logdir(tmp_path)), PROCSV_LOGS_ROLE="nobody").stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_procsv_for_completions(shell: str) -> None:
    script = procsv("completion", shell)
    assert script.returncode == 0, script.stderr
    assert f"_PROCSV_COMPLETE={shell}_complete" in script.stdout


def test_bash_accepts_the_script() -> None:
    script = procsv("completion", "bash").stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False).stderr == ""


def a_logdir(tmp_path: Path) -> Path:
    """Make a run that has only its files left."""
    logdir = tmp_path / "runs" / "mine"
    (logdir / "procsv" / "logs").mkdir(parents=True)
    for role in ("trainer", "checkpoint"):
        (logdir / "procsv" / "logs" / f"{role}.1.log").write_text("hello\n")
    write_run(logdir / "procsv" / "run.json", a_run(logdir=str(logdir), state="done", ended_at=1.0), durable=False)
    return logdir


def completed(tmp_path: Path, *words: str) -> list[str]:
    """Return what procsv offers bash as completions of the last word."""
    asked = {"_PROCSV_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("procsv", *words))}
    found = subprocess.run(
        [sys.executable, "-m", "procsv"],
        env=environment(**asked, COMP_CWORD=str(len(words))),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return [line.partition(",")[2] for line in found.stdout.splitlines()]


def test_commands_options_runs_roles_and_modules_are_completed(tmp_path: Path) -> None:
    a_logdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "mine" / "loop.py").touch()
    assert completed(tmp_path, "sto") == ["stop"]
    assert completed(tmp_path, "launch", "--max-f") == ["--max-failures"]
    assert completed(tmp_path, "launch", "--standby", "w") == ["warm"]
    assert completed(tmp_path, "status", "ru") == ["runs/mine"]
    assert completed(tmp_path, "logs", "runs/mine", "--role", "") == ["checkpoint", "trainer"]
    assert completed(tmp_path, "logs", "--role", "tr") == ["trainer"]
    assert completed(tmp_path, "launch", "tr") == ["train.py", "train"]
    assert completed(tmp_path, "launch", "mine.l") == ["mine.loop"]
    assert completed(tmp_path, "launch", "procsv.examples.di") == ["procsv.examples.digits"]
    assert "procsv.examples.custom_loop" in completed(tmp_path, "launch", "procsv.examples.")

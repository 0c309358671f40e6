"""Options from a TOML file replace the defaults, and a wrong key gets a helpful error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from procsv.base.errors import UserError
from procsv.cli import launch
from procsv.cli.values import DURATION_RANGE, Duration
from procsv.faults.plan import Plan
from procsv.ipc.messaging.launch_settings import LaunchSettings, Range

if TYPE_CHECKING:
    from procsv.ipc.messaging.start import Start


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Start]:
    """Return what launch would have started, in an empty directory with a train.py. It stops short of the exec."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    starts: list[Start] = []
    make = launch.make_start

    def record(*args: object) -> Start:
        starts.append(make(*args))  # type: ignore[arg-type]
        raise SystemExit(0)

    monkeypatch.setattr(launch, "make_start", record)
    return starts


def run(*args: str) -> BaseException | None:
    result = CliRunner().invoke(launch.command, args, catch_exceptions=True)
    if result.exit_code == 2 and isinstance(result.exception, SystemExit):
        return click.UsageError(result.output)
    return result.exception


def test_the_defaults_are_the_ones_in_the_help(made: list[Start]) -> None:
    run("train.py", "--steps", "3")

    start = made[0]
    assert start.settings == LaunchSettings(standby="warm")
    assert start.args == ("--steps", "3")
    assert start.logdir == str(Path("runs/train").resolve())
    assert Path(start.logdir).is_dir()


def test_everything_after_the_target_belongs_to_the_program(made: list[Start]) -> None:
    run("--logdir", "l", "train.py", "--logdir", "other", "--help", "--", "x")
    run("train.py", "--", "--logdir", "x", "--")

    assert made[0].args == ("--logdir", "other", "--help", "--", "x")
    assert made[0].logdir == str(Path("l").resolve())
    assert made[1].args == ("--logdir", "x", "--")


def test_pyproject_replaces_the_defaults_and_the_command_line_wins(made: list[Start], tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.procsv]\nlogdir = "here"\nmax-failures = 9\nsnapshot_secs = "2m"\ngrace = 60\n'
    )
    run("--max-failures", "3", "train.py")

    assert made[0].logdir == str(tmp_path / "here")
    assert made[0].settings.max_failures == 3
    assert (made[0].settings.snapshot_s, made[0].settings.grace_s) == (120.0, 60.0)


def test_a_pyproject_without_our_section_changes_nothing(made: list[Start], tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    run("train.py")

    assert made[0].settings.grace_s == 25.0


def test_a_separate_file_has_the_options_at_the_top_level(made: list[Start], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('backoff = "2s..4s"\n')
    run("--config", "run.toml", "train.py")

    assert made[0].settings.backoff == Range(2.0, 4.0)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('fault = "kill trainer at step 5"', 1),
        ('fault = ["kill trainer at step 5", "raise summary after 3s"]', 2),
    ],
)
def test_a_repeatable_option_is_a_list_or_a_single_value(
    made: list[Start], tmp_path: Path, text: str, count: int
) -> None:
    (tmp_path / "run.toml").write_text(text)
    run("--config", "run.toml", "train.py")

    assert len(Plan.decode(made[0].settings.plan).faults) == count


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-failure = 3", ["'max-failure'", "did you mean max-failures?"]),
        ("snapshots = 3", ["'snapshots'", "did you mean snapshot-secs?"]),
        ("zzz = 3", ["'zzz'", "there are: backoff"]),
        ("target = 'x'", ["'target'"]),
        ("grace = [1]", ["grace takes one value"]),
        ("fault = [['kill trainer at step 5']]", ["fault takes one value"]),
        ("grace = 9\n[tool.other]\nx = 1", ["grace is outside"]),
        ("grace = ", ["is not TOML"]),
    ],
)
def test_a_wrong_file_is_a_usage_error_that_suggests_the_nearest_key(
    made: list[Start], tmp_path: Path, text: str, said: list[str]
) -> None:
    (tmp_path / "run.toml").write_text(text)
    error = run("--config", "run.toml", "train.py")

    assert isinstance(error, UserError)
    assert error.exit_code == 2
    for words in said:
        assert words in str(error)
    assert not made


def test_a_wrong_value_in_a_file_is_reported_as_on_the_command_line(made: list[Start], tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.procsv]\ngrace = "soon"\n')
    error = run("train.py")

    assert isinstance(error, click.UsageError)
    assert "'soon'" in str(error)
    assert "grace in pyproject.toml" in str(error)


@pytest.mark.parametrize("text", ["grace = nan", "snapshot-secs = inf", "max-failures = 'three'", "drop-in = 'ja'"])
def test_a_meaningless_value_is_refused_in_a_file_too(made: list[Start], tmp_path: Path, text: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    error = run("--config", "run.toml", "train.py")

    assert isinstance(error, click.UsageError)
    assert f"{text.partition(' ')[0]} in run.toml" in str(error)
    assert not made


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--lodgir", "x", "train.py"], "--logdir"),
        (["--max-failure", "3", "train.py"], "--max-failures"),
        (["--max-failures", "0", "train.py"], "x>=1"),
        (["--grace", "0", "train.py"], "less than 1 s"),
        (["--snapshot-secs", "often", "train.py"], "auto"),
        (["--backoff", "9s..1s", "train.py"], "9s..1s"),
        (["--on-event", "notify 'the team", "train.py"], "notify 'the team"),
        (["--logdir", "", "train.py"], "logdir"),
        (["--memory-limit", "2", "train.py"], "2GiB"),
        (["--metrics-port", "http", "train.py"], "9400"),
        (["--notify", "slakc://secret", "train.py"], "'slakc'"),
        ([], "TARGET"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error_that_helps(made: list[Start], args: list[str], said: str) -> None:
    error = run(*args)

    assert isinstance(error, click.UsageError)
    assert said in str(error)


def test_an_option_after_the_program_belongs_to_the_program_and_is_named_if_the_program_rejects_it(
    made: list[Start],
) -> None:
    assert run("train.py", "--lr", "0.1", "--backoff=1s", "--grace", "9") is None
    assert made[-1].settings.misplaced == "--backoff"


def test_a_variable_for_an_unknown_launch_option_is_refused_with_the_nearest_one(
    made: list[Start], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCSV_LAUNCH_MAXFAILURES", "3")
    error = run("train.py")
    assert isinstance(error, UserError)
    assert "PROCSV_LAUNCH_MAX_FAILURES" in str(error)
    monkeypatch.delenv("PROCSV_LAUNCH_MAXFAILURES")
    monkeypatch.setenv("PROCSV_LAUNCH_FAULT", "kill trainer at step 5")  # an option that cannot be set there
    assert isinstance(run("train.py"), UserError)
    assert not made


def test_values_are_parsed_as_people_write_them() -> None:
    assert Duration("auto").convert("auto", None, None) == "auto"
    assert Duration().convert("1.5h", None, None) == 5400.0
    assert Duration().convert(3, None, None) == 3.0
    assert DURATION_RANGE.convert("1..60", None, None) == Range(1.0, 60.0)
    assert DURATION_RANGE.convert("5s", None, None) == Range(5.0, 5.0)

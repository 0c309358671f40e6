"""A launch compares the run in its logdir with what it asks for, using real files and no process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from procsv.base.errors import UserError
from procsv.base.identity import WATCHDOG
from procsv.base.run.loaded import LoadedModules, read_file, write_loaded
from procsv.base.run.manifest import Manifest
from procsv.base.run.paths import RunPaths, find_paths
from procsv.base.run.run_file import RunFile, find_run_in, write_run
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.start import Start
from procsv.watchdog.core.relaunch import GoOn
from procsv.watchdog.edge.opening.take_logdir import RunBefore, RunIsComplete

STEP = 50


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project with a complete run of `train.py 0.1`, and work in it."""
    place = tmp_path / "project"
    place.mkdir()
    (place / "train.py").write_text("import model\n")
    (place / "model.py").write_text("RATE = 1\n")
    monkeypatch.chdir(place)
    make_run(find_paths("runs/train"), "train.py", "0.1")
    return place


def start(paths: RunPaths, target: str, *args: str, **changes: Any) -> Start:
    made = Start(
        task=WATCHDOG,
        run="0" * 16,
        incarnation=1,
        logdir=str(paths.logdir),
        run_dir=str(paths.run_dir),
        shm_dir=str(paths.shm_dir),
        naming="anywhere",
        target=target,
        args=args,
    )
    return msgspec.structs.replace(made, **changes)


def make_run(paths: RunPaths, target: str, *args: str, **changes: Any) -> None:
    """Write what a launch leaves whose program has completed."""
    paths.home.mkdir(parents=True)
    begun = start(paths, target, *args)
    run = RunFile(
        run=begun.run,
        target=target,
        args=args,
        program=RunBefore(begun).program,
        logdir=begun.logdir,
        run_dir=begun.run_dir,
        shm_dir=begun.shm_dir,
        pid=1,
        started=0.0,
        boot="",
        state="done",
        incarnation=1,
        step=STEP,
        durable_step=STEP,
        protected=True,
        started_at=1.0,
        ended_at=2.0,
        exit_code=0,
    )
    write_run(paths.run_json, msgspec.structs.replace(run, **changes), durable=False)
    manifest = msgspec.json.encode(Manifest(1, STEP, 1, 1, "r", "final", 0.0, {}))
    (paths.logdir / f"model.ckpt-{STEP}.manifest.json").write_bytes(manifest)
    files = {str(path): file for path in Path.cwd().glob("*.py") if (file := read_file(str(path))) is not None}
    write_loaded(paths.imports, LoadedModules(files=files, home=str(Path.cwd()), attempt=run.incarnation))


def judge(target: str, *args: str, logdir: str | None = None, resume: bool = False) -> str:
    """Return the fate of a launch: "goes on", or its exit code and the first words of its message."""
    paths = find_paths(logdir or "runs/train")
    settings = LaunchSettings(resume=resume)
    before = RunBefore(start(paths, target, *args, names_logdir=logdir is not None, settings=settings))
    run = find_run_in(paths)
    assert run is not None
    try:
        before.judge(run)
    except RunIsComplete as complete:
        return " ".join([str(complete.exit_code), *str(complete).split()[:2]])
    except UserError as error:
        return " ".join([str(error.exit_code), *str(error).split()[:2]])
    verdict = before.verdict
    return "other arguments" if isinstance(verdict, GoOn) and verdict.has_other_args else "goes on"


@pytest.mark.usefixtures("project")
def test_the_same_program_by_another_path_is_the_same(project: Path) -> None:
    for target in ("train.py", "./train.py", str(project / "train.py"), "../project/train.py"):
        assert judge(target, "0.1") == "0 nothing to"
    (project / "link.py").symlink_to("train.py")
    assert judge("link.py", "0.1") == "0 nothing to"


@pytest.mark.usefixtures("project")
def test_arguments_are_compared_one_by_one_and_in_order() -> None:
    for args in ((), ("0.10",), ("0.1", "0.1"), ("0.1 ",)):
        assert judge("train.py", *args) == "2 not started:"
        assert judge("train.py", *args, logdir="runs/train") == "other arguments"


def test_the_runs_directory_in_the_arguments_is_no_difference_after_a_move(project: Path) -> None:
    shutil.rmtree("runs")
    make_run(find_paths("runs/train"), "train.py", f"--out={project}/runs/train")
    moved = project.rename(project.parent / "moved")
    # The working directory moves with it.
    assert judge("train.py", f"--out={moved}/runs/train") == "0 nothing to"
    assert judge("train.py", "--out=elsewhere") == "2 not started:"
    (moved / "model.py").write_text("RATE = 2\n")
    assert judge("train.py", f"--out={moved}/runs/train") == "2 not started:"


def test_another_program_of_that_name_is_refused_and_with_a_logdir_a_copy_is_the_same(project: Path) -> None:
    other = project / "other"
    other.mkdir()
    for name in ("train.py", "model.py"):
        shutil.copy(name, other)
    assert judge("other/train.py", "0.1") == "2 not started:"
    assert judge("other/train.py", "0.1", logdir="runs/train") == "0 nothing to"
    assert judge("other/model.py", "0.1", logdir="runs/train") == "other arguments"
    assert judge("train", "0.1") == "2 not started:", "as a module"


@pytest.mark.usefixtures("project")
def test_an_edit_of_an_imported_file_is_found_and_resume_runs_the_program_again() -> None:
    assert judge("train.py", "0.1", resume=True) == "goes on"
    Path("model.py").write_text("RATE = 2\n")
    assert judge("train.py", "0.1") == judge("train.py", "0.1", logdir="runs/train") == "2 not started:"
    assert judge("train.py", "0.1", resume=True) == "goes on"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "changes",
    [
        {"incarnation": 2},  # a later attempt than the recorded one, perhaps by `python train.py`
        {"protected": False},
        {"protected": None},
        {"durable_step": STEP - 1},
        {"state": "stopped"},
    ],
)
def test_a_program_is_started_if_anything_about_the_end_is_unknown(changes: dict[str, Any]) -> None:
    shutil.rmtree("runs")
    make_run(find_paths("runs/train"), "train.py", "0.1", **changes)
    assert judge("train.py", "0.1") == "goes on"


@pytest.mark.usefixtures("project")
def test_a_program_is_started_if_its_last_checkpoint_or_its_file_record_is_gone() -> None:
    paths = find_paths("runs/train")
    paths.imports.chmod(0o666)  # somebody else may have written it
    assert judge("train.py", "0.1") == "goes on"
    paths.imports.unlink()
    assert judge("train.py", "0.1") == "goes on"
    [manifest] = paths.logdir.glob("*.manifest.json")
    manifest.unlink()
    assert judge("train.py", "0.1") == "goes on"
    assert judge("train.py", "0.2") == "2 not started:"


@pytest.mark.usefixtures("project")
def test_a_launch_that_trained_no_step_does_not_fix_its_arguments() -> None:
    shutil.rmtree("runs")
    nothing = {"state": "failed", "step": -1, "durable_step": -1}
    make_run(find_paths("runs/train"), "train.py", "--rate", **nothing)
    [manifest] = find_paths("runs/train").logdir.glob("*.manifest.json")
    manifest.unlink()
    assert judge("train.py", "--rate", "0.1") == "goes on"


@pytest.mark.usefixtures("project")
def test_a_run_of_an_older_procsv_is_recognized_by_its_programs_name() -> None:
    shutil.rmtree("runs")
    make_run(find_paths("runs/train"), "train.py", "0.1", program="")
    find_paths("runs/train").imports.unlink()
    assert judge("./train.py", "0.1") == "goes on"
    assert judge("model.py", "0.1", logdir="runs/train") == "other arguments"

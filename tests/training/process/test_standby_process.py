"""The standby's process imports what it should, leaves the rest alone and can start over, without TensorFlow."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from procsv.base.identity import STANDBY
from procsv.base.run.loaded import LoadedModules
from procsv.base.run.paths import RunPaths
from procsv.ipc.messaging.fd_channel import FdChannel
from procsv.ipc.messaging.fd_messages import STANDBY_DECODER, StandbyWord, Waiting
from procsv.ipc.messaging.launch_settings import LaunchSettings
from procsv.ipc.messaging.start import Start
from procsv.training.process.import_record import EnvironmentRecorder
from procsv.training.process.imported import Imported, Modules
from tests.support.programs import DEADLINE_S, ROOT


def module(name: str, origin: str | None, locations: list[str] | None = None) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None, origin=origin, is_package=locations is not None)
    made.__spec__.has_location = origin is not None and origin.startswith("/")
    if locations is not None:
        made.__spec__.submodule_search_locations = locations
    return made


def test_only_installed_modules_are_listed_and_the_programs_own_names_separately() -> None:
    site = str(Path(msgspec.__file__).parents[1])
    modules: Modules = {
        "__main__": module("__main__", "/home/me/train.py"),
        "sys": module("sys", "built-in"),
        "json": module("json", json_file()),
        "msgspec": module("msgspec", f"{site}/msgspec/__init__.py"),
        "google": module("google", None, [f"{site}/google"]),
        "google.mine": module("google.mine", "/home/me/google/mine.py"),
        "helper": module("helper", "/home/me/helper.py"),
        "alias": module("msgspec", f"{site}/msgspec/__init__.py"),
        "installed_program.data": module("installed_program.data", f"{site}/installed_program/data.py"),
        "procsv.training.sessions.supervisor": module(
            "procsv.training.sessions.supervisor", "/src/procsv/training/supervisor.py"
        ),
        "procsv.examples.digits": module("procsv.examples.digits", "/src/procsv/examples/digits.py"),
        "made.up": module("made.up", None),
    }
    imported = Imported(modules)
    imported.note_modules()
    installed, own = imported.names("installed_program")
    assert installed == ["sys", "json", "msgspec", "google", "procsv.training.sessions.supervisor"]
    assert own == ["helper", "installed_program"]


def json_file() -> str:
    import json

    return json.__file__


def test_the_environment_counts_as_it_was_when_tensorflow_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GONE", "1")
    monkeypatch.setenv("SAME", "1")
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [])
    recorder = EnvironmentRecorder()
    recorder.start_recording()
    monkeypatch.delenv("GONE")
    monkeypatch.setenv("NEW", "2")
    for finder in sys.meta_path:
        assert finder.find_spec("json", None) is None
        assert finder.find_spec("tensorflow", None) is None
        monkeypatch.setenv("LATER", "3")
        assert finder.find_spec("tensorflow", None) is None
    assert recorder.changes == {"GONE": None, "NEW": "2"}


def test_a_finder_behind_the_recorder_is_asked_for_tensorflow_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
        monkeypatch.delitem(sys.modules, name)
    asked = EnvironmentRecorder()  # any finder that finds nothing and remembers
    monkeypatch.setattr(sys, "meta_path", [asked])
    monkeypatch.setenv("SAME", "1")
    monkeypatch.setenv("NEW", "2")
    EnvironmentRecorder().start_recording()
    assert importlib.util.find_spec("tensorflow") is None
    assert "NEW" in asked.changes


def test_a_variable_that_another_thread_removes_meanwhile_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"GONE_{number}" for number in range(5)]
    for name in names:
        monkeypatch.setenv(name, "1")
    recorder, left, decode = EnvironmentRecorder(), list(names), os.environ.decodevalue
    monkeypatch.setattr(sys, "meta_path", [recorder])

    def decode_meanwhile(value: Any) -> str:
        if left:
            del os.environ[left.pop()]
        return decode(value)

    monkeypatch.setattr(os.environ, "decodevalue", decode_meanwhile)
    recorder.find_spec("tensorflow", None)
    assert recorder.changes.keys() <= set(names)
    assert not left


@contextlib.contextmanager
def standing_by(
    tmp_path: Path, loaded: LoadedModules
) -> Iterator[tuple[subprocess.Popen[bytes], FdChannel[StandbyWord], Path]]:
    """Return a standby that imports `loaded`, its line and its log."""
    (tmp_path / "run").mkdir()
    paths = RunPaths(tmp_path, tmp_path / "run", tmp_path / "run")
    paths.loaded.write_bytes(msgspec.json.encode(loaded))
    line, end = FdChannel.pair(STANDBY_DECODER)
    lifeline = os.pipe()
    start = Start(
        task=STANDBY, run="r", incarnation=1, logdir=str(tmp_path), run_dir=str(paths.run_dir), shm_dir=str(tmp_path),
        lifeline_fd=lifeline[0], target=__file__, settings=LaunchSettings(standby="warm"), standby_fd=end.fd,
    )  # fmt: skip
    log = tmp_path / "log"
    with log.open("wb") as output:
        environment = start.environment({**os.environ, "PYTHONPATH": str(ROOT)})
        process = subprocess.Popen(
            start.argv(), env=environment, pass_fds=(lifeline[0], end.fd), stdout=output, stderr=output
        )
    end.close()
    try:
        yield process, line, log
    finally:
        process.kill()
        process.wait()
        for fd in lifeline:
            os.close(fd)
        line.close()


def wait_ready(line: FdChannel[StandbyWord]) -> Waiting:
    assert select.select([line.fd], [], [], DEADLINE_S)[0], "it never was ready"
    received = line.receive()
    assert received is not None
    assert isinstance(received[0], Waiting)
    return received[0]


@pytest.mark.fault
def test_a_library_that_needs_the_programs_own_module_is_left_out_and_so_is_one_that_fails(
    tmp_path: Path,
) -> None:
    # xmlrpc.client imports http.client; gone_since is not installed any more.
    loaded = LoadedModules(modules=("xmlrpc.client", "gone_since.then", "colorsys"), own=("http",))
    with standing_by(tmp_path, loaded) as (process, line, log):
        assert wait_ready(line).modules > 0
        said = log.read_text()
        assert "the program's own http" in said or "http is the program's" in said
        assert said.index("starting over without xmlrpc") < said.index("starting over without gone_since")
        assert process.poll() is None
        line.close()  # as when the watchdog has died
        assert process.wait(DEADLINE_S) == 0

"""Lay out by hand what a killed commit leaves: staged files, files in place and the `checkpoint` file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from procsv.base.run.manifest import Manifest
from procsv.services.checkpoint.format.manifest import encode_manifest, sum_file
from procsv.services.checkpoint.format.names import all_files, manifest_of
from procsv.services.checkpoint.format.state_file import read_state, write_state
from procsv.services.checkpoint.store.commit import StagingArea, read_text
from procsv.services.checkpoint.store.intent import Intent, write_intent

DATA, INDEX, META, MANIFEST = ".data-00000-of-00001", ".index", ".meta", ".manifest.json"


class Interrupted:
    """A logdir, its staging area and the commits begun there."""

    def __init__(self, logdir: Path) -> None:
        self.logdir, self.area = logdir, StagingArea(logdir / "procsv")
        logdir.mkdir(exist_ok=True)

    def begin(
        self, sequence: int, name: str = "m-7", suffixes: tuple[str, ...] = (DATA, INDEX), **changes: Any
    ) -> tuple[Path, Intent]:
        """Write the files and no more. Return the staging directory and the intent."""
        staging = self.area.begin_commit(sequence)
        for suffix in suffixes:
            (staging / (name + suffix)).write_text(f"{suffix} of {sequence}")
        files = {path.name: sum_file(path) for path in staging.iterdir()}
        path, state = str(self.logdir / name), self.logdir / "checkpoint"
        fields: dict[str, Any] = {
            "path": path,
            "manifest": Manifest(1, sequence, sequence, 1, "run", "periodic", 1e9, files),
            "state_file": str(state),
            "save_path": str(self.logdir / "m"),
            "relative": False,
            "listed": (path,),
            "delete": (),
            "state_before": read_text(state),
            "replaces": bool(all_files(path)),
        }
        return staging, Intent(**(fields | changes))

    def interrupt(self, sequence: int, name: str = "m-7", **changes: Any) -> tuple[Path, Intent]:
        """Leave a commit that was killed right after its intent: everything is still staged."""
        staging, intent = self.begin(sequence, name, **changes)
        write_intent(staging, intent)
        return staging, intent

    def place(self, staging: Path, intent: Intent) -> None:
        """Move its files into place, too."""
        for name in intent.manifest.files:
            (staging / name).rename(self.logdir / name)

    def finish(self, staging: Path, intent: Intent) -> None:
        """Leave a commit that was killed during its clean-up."""
        self.place(staging, intent)
        self.write_manifest(intent)
        self.write_list(*intent.listed)

    def write_manifest(self, intent: Intent) -> None:
        manifest_of(intent.path).write_bytes(encode_manifest(intent.manifest))

    def commit(self, sequence: int, name: str = "m-7", **changes: Any) -> list[str]:
        """Commit without interruption."""
        return self.area.commit(*self.begin(sequence, name, **changes))

    def set_aside(self, sequence: int, name: str = "m-7") -> None:
        """Link the checkpoint of that name into `replaced`, for the commit of `sequence`."""
        kept = self.area.replaced / str(sequence)
        kept.mkdir(parents=True)
        for path in all_files(str(self.logdir / name)):
            (kept / path.name).hardlink_to(path)

    def write_list(self, *paths: str | Path) -> None:
        """Write the `checkpoint` file, oldest first."""
        write_state(self.logdir / "checkpoint", str(self.logdir / "m"), [str(path) for path in paths], False)

    def listed(self) -> list[str]:
        """Return the names in the `checkpoint` file, oldest first."""
        state = read_state(self.logdir / "checkpoint")
        if state is None:
            return []
        assert state.latest == state.all_paths[-1]
        return [Path(path).name for path in state.all_paths]

    def files(self) -> dict[str, str]:
        """Return the logdir's files except the `checkpoint` file and the staging area. A manifest
        shows its sequence.
        """
        return {
            path.name: str(msgspec.json.decode(path.read_bytes())["sequence"])
            if path.name.endswith(MANIFEST)
            else path.read_text()
            for path in self.logdir.iterdir()
            if path.is_file() and path.name != "checkpoint"
        }


def whole(sequence: int, name: str = "m-7", suffixes: tuple[str, ...] = (DATA, INDEX)) -> dict[str, str]:
    """Return the files of a checkpoint as a finished commit leaves them."""
    return {name + suffix: f"{suffix} of {sequence}" for suffix in suffixes} | {name + MANIFEST: str(sequence)}

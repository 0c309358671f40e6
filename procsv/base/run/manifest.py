"""Manifest of a checkpoint, `<prefix>.manifest.json`: its data, and the newest step that a logdir's manifests speak of.

Written and verified by the checkpoint service.  Decides nothing about what is restored.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from procsv.base.json_data import decode_sealed
from procsv.base.outcome import NO_STEP

MANIFEST_SUFFIX = ".manifest.json"
STATE_FILE = "checkpoint"  # TensorFlow's own, which lists the checkpoints that are kept

Reason = Literal["start", "periodic", "final", "crash", "preempt", "manual"]  # why a checkpoint was saved


class FileSum(msgspec.Struct, frozen=True):
    size: int  # bytes
    xxh3_128: str  # hex


class Manifest(msgspec.Struct, frozen=True):
    """What a checkpoint holds, and what its files must look like."""

    version: int
    step: int
    sequence: int
    incarnation: int  # of the trainer whose state it is
    run: str
    reason: Reason
    time: float  # Unix seconds
    files: dict[str, FileSum]
    is_external: bool = msgspec.field(default=False, name="guest")  # by another Saver: nothing resumes from it
    is_mixed: bool = msgspec.field(default=False, name="mixed")  # of neighbouring steps: tasks trained meanwhile

    logged: dict[str, int] = {}  # bytes of the program's event files that belong to the state, by name

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files.values())


def saved_step(logdir: Path) -> int:
    """The step that `checkpoint` points to, or else the newest that a manifest speaks of; NO_STEP of none.

    Trusts the small files: this is before the checkpoints are verified.
    """
    steps = {path.name.removesuffix(MANIFEST_SUFFIX): _step_of(path) for path in logdir.glob(f"*{MANIFEST_SUFFIX}")}
    pointed = steps.get(_latest(logdir), NO_STEP)
    return pointed if pointed != NO_STEP else max(steps.values(), default=NO_STEP)


def _step_of(path: Path) -> int:
    try:
        manifest = decode_sealed(path.read_bytes(), Manifest, may_lack_seal=True)
    except (OSError, msgspec.DecodeError):
        return NO_STEP
    return NO_STEP if manifest.is_external else manifest.step


def _latest(logdir: Path) -> str:
    """The name of the checkpoint that the `checkpoint` file, as TensorFlow writes it, names as the latest."""
    try:
        found = re.search(r'^model_checkpoint_path: "(.*)"$', (logdir / STATE_FILE).read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return ""
    return Path(found[1]).name if found else ""

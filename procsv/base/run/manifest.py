"""Manifest of a checkpoint, `<prefix>.manifest.json`: its data.

Written and verified by the checkpoint service.  Decides nothing about what is restored.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MANIFEST_SUFFIX = ".manifest.json"
STATE_FILE = "checkpoint"  # TensorFlow's own, which lists the checkpoints that are kept

Reason = Literal["start", "periodic", "final", "crash", "preempt", "manual"]  # why a checkpoint was saved


class FileSum(msgspec.Struct, frozen=True):
    size: int  # bytes
    xxh3_128: str  # hex


class FileId(msgspec.Struct, frozen=True):
    """What distinguishes a file from others of the same name."""

    inode: int
    size: int  # bytes
    mtime_ns: int


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

    # The index as it was when this was written: of a checkpoint of a same name that somebody has saved since, whatever the clocks said, it is
    # another one; of a copy, too, whose files match all the same.  None: at a URL, or of a manifest of before.
    index: FileId | None = None

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files.values())

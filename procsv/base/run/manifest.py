"""Define the contents of a checkpoint's manifest, `<prefix>.manifest.json`.

The checkpoint service writes manifests, and verifies checkpoints against them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MANIFEST_SUFFIX = ".manifest.json"
STATE_FILE = "checkpoint"  # TensorFlow's list of the kept checkpoints

Reason = Literal["start", "periodic", "final", "crash", "preempt", "manual"]  # why a checkpoint was saved


class FileSum(msgspec.Struct, frozen=True):
    size: int  # bytes
    xxh3_128: str  # hex


class FileId(msgspec.Struct, frozen=True):
    """Distinguishes a file from others of the same name."""

    inode: int
    size: int  # bytes
    mtime_ns: int


class Manifest(msgspec.Struct, frozen=True):
    """The state that a checkpoint holds, and the sizes and checksums of its files."""

    version: int
    step: int
    sequence: int  # number of the snapshot; a later snapshot has a higher one
    incarnation: int  # of the trainer that had this state
    run: str
    reason: Reason
    time: float  # Unix seconds
    files: dict[str, FileSum]
    is_external: bool = msgspec.field(default=False, name="guest")  # saved by another Saver; nothing resumes from it
    # Mixes neighbouring steps, because tasks trained on during the capture.
    is_mixed: bool = msgspec.field(default=False, name="mixed")

    logged: dict[str, int] = {}  # name of an event file of the program -> how many bytes belong to the state
    logged_s: float = 0.0  # when `logged` was read, in Unix seconds; 0: the lengths are unknown

    # Identity of the index file when this was written.  A checkpoint that was saved later under the same name has another
    # identity, whatever the clocks say.  A copy has another one, too, although the contents of its files match.  None at
    # a URL, or from an earlier procsv.
    index: FileId | None = None

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files.values())

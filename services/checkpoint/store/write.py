"""Write checkpoint files from the tensors in a slot, and read them back.

The store calls it on the disk thread. It writes the V2 format without TensorFlow
(bundle_writer.py), so the service starts fast and stays small. It does not know where checkpoints
go or how they are named.
"""

from __future__ import annotations

import glob
import mmap
from pathlib import Path

import msgspec

from procsv.base.run.manifest import FileSum
from procsv.base.system import disk
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.shm.slot_index import Contents
from procsv.services.checkpoint.core.facts import WriteMismatch
from procsv.services.checkpoint.format.bundle_reader import BadBundle, check_structure
from procsv.services.checkpoint.format.bundle_writer import BundleWriter, plan_bundle
from procsv.services.checkpoint.format.manifest import BadCheckpoint, verify_file, verify_size

SOON_BYTES = 2**20

declare("checkpoint.mid_write")


class WrittenFiles(msgspec.Struct, frozen=True):
    """Files that were written but not yet synced."""

    path: str  # as Saver.save would have returned it
    sums: dict[str, FileSum]  # by file name
    proven: frozenset[str]  # files that bypassed the page cache; the bytes handed to the disk were checked

    @property
    def is_soon_read(self) -> bool:
        """Whether reading the files back is faster than starting a thread that syncs them."""
        return sum(its.size for name, its in self.sums.items() if name not in self.proven) < SOON_BYTES


def write_files(contents: Contents, memory: mmap.mmap, prefix: str) -> WrittenFiles:
    """Write the files that Saver.save would have written for `prefix`.

    Raise WriteMismatch if the slot does not match its checksums any more.
    """
    plan = plan_bundle(contents)
    bundle = BundleWriter(plan, memory, prefix)
    for number in range(plan.count):
        bundle.write_shard(number)
        _break_in_the_middle(prefix)
    bundle.write_index()
    sums = {path.name: its_sum for path, its_sum in bundle.files.items()}
    return WrittenFiles(prefix, sums, frozenset(path.name for path in bundle.proven))


def read_back(written: WrittenFiles) -> None:
    """Read the files back. Raise WriteMismatch if they differ from what was written.

    The writer has compared the bytes with the slot's checksums. Here the files must still hold the
    same bytes, and the index must be readable. This proves that the kernel has the right bytes: no
    write was short, and no byte was flipped in this process.

    A file that bypassed the page cache has no bytes there to read back. The writer checked the
    bytes that it handed to the disk, so only the file's size is checked here. A later read,
    with the same sums, finds damage on the disk itself.
    """
    try:
        check_structure(written.path)
        for name, expected in written.sums.items():
            verify = verify_size if name in written.proven else verify_file
            verify(Path(written.path).parent / name, expected)
    except (BadBundle, BadCheckpoint) as error:
        raise WriteMismatch(str(error)) from error


def _break_in_the_middle(prefix: str) -> None:
    if failpoint("checkpoint.mid_write"):  # tear the files: cut off half of each
        for path in glob.glob(glob.escape(prefix) + ".data-*"):  # noqa: PTH207  glob.escape knows no Path
            disk.truncate(Path(path), Path(path).stat().st_size // 2)

"""Read and write the header of a snapshot slot, and list the slots in a directory.

slot_file.py and slot_reader.py use it, and so does every process that lists slots.  If a header is
not whole (never written, or torn), its slot counts as empty.

    0      header: magic, state, owner, sequence, step, run, place and hash of the table of contents
    4096   tensors, each at a multiple of 64 bytes
    …      table of contents (msgpack of slot_index.Contents)
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
from pathlib import Path

import xxhash

from procsv.base.identity import TaskId, parse_attempt
from procsv.ipc.shm.slot_state import SlotInfo, SlotState

HEADER_BYTES = 4096
HEADERS_MAX = 64  # how many decoded headers to cache; most do not change between two reads
_MAGIC = b"procsv-slot-0002"
# magic, state, incarnation, task, sequence, step, run id, toc offset, toc size, toc hash; then the hash of all but state
_HEADER = struct.Struct("=16sII32sQq32sQQQ")
STATE_AT = 16
_STATES = frozenset(SlotState) - {SlotState.REMOVED}
_HASH_AT, _HASH_BYTES = _HEADER.size, 8


def pack_header(info: SlotInfo) -> bytes:
    """Returns the header bytes for `info`."""
    run, task = (text.encode().ljust(32, b"\0") for text in (info.run, str(info.task)))
    assert len(run) == len(task) == 32, "a run id and the name of a task have at most 32 bytes each"
    head = _HEADER.pack(
        _MAGIC,
        info.state,
        info.incarnation,
        task,
        info.sequence,
        info.step,
        run,
        info.toc_offset,
        info.toc_size,
        info.toc_hash,
    )
    return head + struct.pack("=Q", _hash_without_state(head))


def _hash_without_state(head: bytes) -> int:
    return xxhash.xxh3_64_intdigest(head[:STATE_AT] + head[STATE_AT + 4 :])


def unpack_header(path: str | Path, head: bytes) -> SlotInfo | None:
    """Returns the header in `head`.

    None if it is not whole (never written, or torn), or if another version of procsv wrote it.
    """
    return _unpack_header(str(path), head[: _HASH_AT + _HASH_BYTES])


@functools.lru_cache(maxsize=HEADERS_MAX)
def _unpack_header(path: str, head: bytes) -> SlotInfo | None:
    if len(head) < _HASH_AT + _HASH_BYTES or head[:16] != _MAGIC:
        return None
    if struct.unpack_from("=Q", head, _HASH_AT)[0] != _hash_without_state(head[: _HEADER.size]):
        return None
    _, state, incarnation, task, sequence, step, run, offset, size, toc_hash = _HEADER.unpack_from(head)
    if state not in _STATES:
        return None
    owner, run_id = TaskId.parse(_text(task)), _text(run)
    return SlotInfo(
        path=Path(path),
        state=SlotState(state),
        task=owner,
        incarnation=incarnation,
        sequence=sequence,
        step=step,
        run=run_id,
        toc_offset=offset,
        toc_size=size,
        toc_hash=toc_hash,
    )


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode("ascii", "replace")


def is_slot_of(task: TaskId, path: Path) -> bool:
    """Whether `path` is named like a slot of `task`.  The slot itself may be torn."""
    try:
        return parse_attempt(path.stem.removeprefix("slot."))[0] == task
    except ValueError:
        return False


def scan_slots(shm_dir: Path, *, any_state: bool = False) -> list[SlotInfo]:
    """Returns the READY slots, newest sequence first.

    `any_state`: returns slots in all states.  A slot whose header is not whole is left out even
    then.
    """
    there, found = list[str](), []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        there = os.listdir(shm_dir)  # noqa: PTH208  names are enough, and this runs ten times a save
    for name in there:
        if not name.startswith("slot."):
            continue
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            info = read_header(f"{shm_dir}/{name}")
            if info is not None and (any_state or info.state is SlotState.READY):
                found.append(info)
    return sorted(found, key=lambda info: info.sequence, reverse=True)


def read_header(path: str | Path) -> SlotInfo | None:
    """Reads the header of the slot at `path`; None if it is not whole."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return unpack_header(path, os.read(fd, _HASH_AT + _HASH_BYTES))
    finally:
        os.close(fd)

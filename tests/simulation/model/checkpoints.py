"""A checkpoint on the simulated disk: its names, its checksums, and whether it is whole.

store.py and commit.py make checkpoints; invariants.py judges them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from procsv.base.run.manifest import FileSum, Manifest
from tests.simulation.model.disk import Node

HOME = "/logdir/procsv"
STAGING, REPLACED = f"{HOME}/staging/", f"{HOME}/replaced/"
STATE_FILE = "/logdir/checkpoint"
SAVE_PATH = "/logdir/model.ckpt"
Read = Callable[[Node], Any]
CONTENT: Read = attrgetter("content")
SYNCED: Read = attrgetter("synced")


@dataclass(frozen=True, slots=True)
class Intent:
    """commit.Intent, the redo log of one commit."""

    path: str
    manifest: Manifest
    listed: tuple[str, ...]
    delete: tuple[str, ...]
    state_before: tuple[str, ...] | None
    replaces: bool


def sum_of(content: Any) -> FileSum:
    return FileSum(1, repr(content))


def files_of(path: str) -> tuple[str, str]:
    return f"{path}.data", f"{path}.index"


def manifest_at(path: str) -> str:
    return f"{path}.manifest.json"


def base_name(path: str) -> str:
    return path.rpartition("/")[2]


def is_whole(files: dict[str, Node], path: str, read: Read = CONTENT) -> bool:
    """Return whether `path` is a good checkpoint in `files`, or will be once its commit is
    finished. `read` selects what counts.
    """
    node = files.get(manifest_at(path))
    manifest = read(node) if node is not None else None
    if isinstance(manifest, Manifest) and holds(files, manifest, path, "", read):
        return True
    for name in files:
        if name.startswith(STAGING) and name.endswith("/intent"):
            intent = read(files[name])
            if isinstance(intent, Intent) and intent.path == path:
                staging = name.rpartition("/")[0]
                is_there = holds(files, intent.manifest, path, staging, read)
                return is_there or _comes_back(files, intent, base_name(staging), read)
    return False


def _comes_back(files: dict[str, Node], intent: Intent, commit: str, read: Read) -> bool:
    """Return whether undoing this commit restores an older checkpoint of its name."""
    aside = f"{REPLACED}{commit}"
    node = files.get(f"{aside}/{base_name(manifest_at(intent.path))}") or files.get(manifest_at(intent.path))
    manifest = read(node) if node is not None else None
    return isinstance(manifest, Manifest) and holds(files, manifest, intent.path, aside, read)


def saved_after(files: dict[str, Node], sequence: int) -> list[str]:
    """Return the checkpoints whose manifests name a later snapshot."""
    manifests = [node.content for node in files.values() if isinstance(node.content, Manifest)]
    return [f"{SAVE_PATH}-{manifest.step}" for manifest in manifests if manifest.sequence > sequence]


def is_safe(files: dict[str, Node], path: str) -> bool:
    """Do `is_whole` for what survives a power loss: bytes count as they were synced."""
    return is_whole(files, path, SYNCED)


def holds(files: dict[str, Node], manifest: Manifest, path: str, staging: str, read: Read = CONTENT) -> bool:
    directory = path.rpartition("/")[0]
    for name, expected in manifest.files.items():
        node = files.get(f"{staging}/{name}") if staging else None
        node = files.get(f"{directory}/{name}") if node is None else node
        if node is None or sum_of(read(node)) != expected:
            return False
    return True

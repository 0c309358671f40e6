"""Inventory of a checkpoint directory: its checkpoints, and the files that belong to none.

Filled by tools/inventory.py and remote/inventory.py.  Never reads a file.
"""

from __future__ import annotations

import re

import msgspec

from procsv.base.run.manifest import Manifest
from procsv.services.checkpoint.store.names import base_of


class Item(msgspec.Struct, kw_only=True):
    """One checkpoint.  `time` is Unix seconds; `step` -1 if it is not known."""

    path: str
    step: int
    bytes: int
    time: float | None  # None: nothing of it is left
    reason: str | None  # None: not written by procsv
    incarnation: int | None
    listed: bool  # in the `checkpoint` file
    latest: bool  # what TensorFlow would restore
    verified: bool  # every byte was read and is right
    error: str | None  # what is wrong with it


class Inventory(msgspec.Struct, kw_only=True):
    directory: str
    checkpoints: list[Item]  # oldest step first
    rejected: list[str]  # directories of checkpoints that were moved aside
    leftovers: list[str]  # files of no checkpoint: of one being written, or of a save or deletion that was cut short
    error: str | None  # what is wrong with the `checkpoint` file


def make_item(
    path: str,
    manifest: Manifest | None,
    step: int,
    size: int,
    newest: float | None,
    is_listed: bool,
    is_latest: bool,
    verify: bool,
    error: str | None,
) -> Item:
    """The checkpoint at `path`: as its manifest says, else with the size and time of its files."""
    return Item(
        path=path,
        step=step,
        bytes=manifest.bytes if manifest else size,
        time=manifest.time if manifest else newest,
        reason=manifest.reason if manifest else None,
        incarnation=manifest.incarnation if manifest else None,
        listed=is_listed,
        latest=is_latest,
        verified=verify and error is None,
        error=error,
    )


_PARTS = re.compile(r"(.*?)(-\d{5}-of-\d{5}|\.(data-\d{5}-of-\d{5}|meta|manifest\.json))$")
_IN_THE_MAKING = re.compile(r"\.tempstate\d+$|_temp$|-of-\d{5}\.tmp$")


def is_leftover(name: str, prefixes: set[str]) -> bool:
    """Whether it is part of a checkpoint that is none: without an index, and on no list."""
    part = _PARTS.fullmatch(name)
    bases = {base_of(prefix) for prefix in prefixes}
    return bool(_IN_THE_MAKING.search(name)) or (part is not None and part[1] not in bases)

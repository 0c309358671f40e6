"""The newest step that the manifests of a logdir speak of."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from procsv.base.encoding import decode_sealed
from procsv.base.outcome import NO_STEP
from procsv.base.run.manifest import MANIFEST_SUFFIX, STATE_FILE, Manifest
from procsv.base.system.data_file import read_data


def saved_step(logdir: Path) -> int:
    """The step that `checkpoint` points to, or else the newest that a manifest speaks of; NO_STEP of none.

    Trusts the small files: this is before the checkpoints are verified.
    """
    steps = {path.name.removesuffix(MANIFEST_SUFFIX): _step_of(path) for path in logdir.glob(f"*{MANIFEST_SUFFIX}")}
    pointed = steps.get(_latest(logdir), NO_STEP)
    return pointed if pointed != NO_STEP else max(steps.values(), default=NO_STEP)


def _step_of(path: Path) -> int:
    try:
        manifest = decode_sealed(read_data(path, follows_links=True), Manifest, may_lack_seal=True)
    except (OSError, msgspec.DecodeError):
        return NO_STEP
    return NO_STEP if manifest.is_external else manifest.step


def _latest(logdir: Path) -> str:
    """The name of the checkpoint that the `checkpoint` file, as TensorFlow writes it, names as the latest."""
    try:
        found = re.search(
            r'^model_checkpoint_path: "(.*)"$',
            read_data(logdir / STATE_FILE, follows_links=True).decode(),
            re.MULTILINE,
        )
    except (OSError, UnicodeDecodeError):
        return ""
    return Path(found[1]).name if found else ""

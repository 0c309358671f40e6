"""Find the newest saved step in a logdir from its manifests."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from procsv.base.encoding import decode_sealed
from procsv.base.outcome import NO_STEP
from procsv.base.run.manifest import MANIFEST_SUFFIX, STATE_FILE, Manifest
from procsv.base.system.data_file import read_data


def saved_step(logdir: Path) -> int:
    """Returns the step of the checkpoint that the `checkpoint` file calls the latest.

    If that checkpoint has no manifest, or another Saver saved it, returns the highest step of the
    checkpoints that procsv saved; NO_STEP if there is none.  This trusts the manifests, and does
    not verify the checkpoints.
    """
    steps = {path.name.removesuffix(MANIFEST_SUFFIX): _step_of(path) for path in logdir.glob(f"*{MANIFEST_SUFFIX}")}
    pointed = steps.get(_latest(logdir), NO_STEP)
    return pointed if pointed != NO_STEP else max(steps.values(), default=NO_STEP)


def manifest_at(path: Path) -> Manifest | None:
    """Returns the manifest at `path`; None if there is none that can be read."""
    try:
        return decode_sealed(read_data(path, follows_links=True), Manifest, may_lack_seal=True)
    except (OSError, msgspec.DecodeError):
        return None


def _step_of(path: Path) -> int:
    manifest = manifest_at(path)
    return NO_STEP if manifest is None or manifest.is_external else manifest.step


def _latest(logdir: Path) -> str:
    """Returns the name of the latest checkpoint, as the `checkpoint` file says it.

    "" if the file cannot be read.
    """
    try:
        found = re.search(
            r'^model_checkpoint_path: "(.*)"$',
            read_data(logdir / STATE_FILE, follows_links=True).decode(),
            re.MULTILINE,
        )
    except (OSError, UnicodeDecodeError):
        return ""
    return Path(found[1]).name if found else ""

"""Search for the checkpoint to restore: the first good one, in the order of the listing.

LocalListing (catalog.py) and UrlListing (remote/catalog.py) handle local and remote directories. A
bad checkpoint is moved aside and taken off the list. A checkpoint that cannot be read now is
skipped and left alone, because a later search may be able to read it.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec.structs import replace

from procsv.base.run.manifest import Manifest
from procsv.ipc.messaging.checkpoint_messages import CheckpointPlan, Rejected
from procsv.services.checkpoint.core.facts import Candidate, FoundCheckpoint
from procsv.services.checkpoint.format.manifest import BadCheckpoint
from procsv.services.checkpoint.format.names import base_of, is_like, step_in_name

_NUMBERED = re.compile(r"(-\d+)?\.index")  # follows the basename
_REMAINS = re.compile(r"(-\d+)?(\.rejected(\.\d+)?|\.data-\d{5}-of-\d{5}|\.manifest\.json)")


class Listing(ABC):
    """The present checkpoints of a plan, in the order in which a search tries them."""

    def __init__(
        self, directory: str, basename: str, names: Sequence[str], listed: Sequence[str], trouble: str, is_garbled: bool
    ) -> None:
        """`names`: everything in the directory.

        `listed`: the paths in the `checkpoint` file, the latest first.
        """
        self.directory, self.basename, self.names = directory, basename, names
        self.trouble = trouble  # what is wrong with the `checkpoint` file; "" if nothing
        self.is_garbled = is_garbled  # the `checkpoint` file can be read but makes no sense
        numbered = [n.removesuffix(".index") for n in names if is_like(n, basename, _NUMBERED)]
        found = [f"{directory}/{name}" for name in sorted(numbered, key=step_in_name, reverse=True)]
        known = {base_of(path) for path in listed}
        others = [path for path in found if path not in known]
        self.manifests: dict[str, Manifest | None] = {}  # of all candidates; None if a candidate has no manifest
        self.candidates = [self._candidate(path, path in listed) for path in (*listed, *others)]
        remains = any(is_like(name, basename, _REMAINS) for name in names)
        self.exists = bool(self.candidates or trouble) or remains  # if so, a run must not start from step 0

    @abstractmethod
    def is_there(self, path: str) -> bool:
        """Whether TensorFlow would accept `path` as a checkpoint."""

    @abstractmethod
    def manifest_of(self, path: str) -> Manifest | None:
        """Return the manifest; None if there is none. Raise BadCheckpoint if it makes no sense."""

    @abstractmethod
    def verify_checkpoint(self, path: str) -> int:
        """Verify a checkpoint and return its step.

        Raise BadCheckpoint if it is not whole, or OSError if it cannot be read now.
        """

    @abstractmethod
    def move_aside(self, path: str) -> None:
        """Move a checkpoint's files into `<name>.rejected/`.

        The index goes first. Killed in between: if the `checkpoint` file lists the checkpoint, the
        next search moves the other files. If not, TensorFlow ignores them without the index.
        """

    @abstractmethod
    def write_list(self, plan: CheckpointPlan, paths: tuple[str, ...]) -> None:
        """Replace the `checkpoint` file. `paths`: oldest first."""

    def _candidate(self, path: str, listed: bool) -> Candidate:
        manifest = None
        with contextlib.suppress(BadCheckpoint, OSError):
            manifest = self.manifest_of(path)
        self.manifests[path] = manifest
        if manifest is None:
            return Candidate(path, step_in_name(path), 0, listed)
        return Candidate(path, manifest.step, manifest.sequence, listed)

    @property
    def listed(self) -> list[str]:
        return [c.path for c in self.candidates if c.listed]

    @property
    def kept(self) -> tuple[str, ...]:
        """The listed checkpoints that exist, oldest first."""
        return tuple(path for path in reversed(self.listed) if self.is_there(path))

    # -- the search ------------------------------------------------------------------------------------------
    def search(self, plan: CheckpointPlan, before: int) -> FoundCheckpoint:
        """Find the first good checkpoint.

        `before`: skip checkpoints of this step and later (-1: skip none).
        """
        rejected, bad = [], set[str]()
        for position, candidate in enumerate(self.candidates):
            if 0 <= before <= candidate.step:
                continue
            try:
                step = self._verify_twice(candidate.path)
            except BadCheckpoint as error:
                with contextlib.suppress(OSError):  # on a read-only disk the next search skips it again
                    self.move_aside(candidate.path)
                bad.add(candidate.path)
                rejected.append(Rejected(candidate.path, str(error)))
                continue
            except OSError as trouble:
                rejected.append(Rejected(candidate.path, f"it cannot be read: {trouble}"))
                continue
            kept = self.kept
            if (bad or self.is_garbled) and before < 0:
                kept = self._relist(plan, position, bad)
            return FoundCheckpoint(replace(candidate, step=step), kept, tuple(rejected), "")
        error_text = _nothing_good(plan, self, rejected) if self.exists else ""
        return FoundCheckpoint(None, self.kept if before >= 0 else (), tuple(rejected), error_text)

    def _verify_twice(self, path: str) -> int:
        """Verify a checkpoint; after an OSError, verify it once more.

        So a transient error does not select an older checkpoint.
        """
        try:
            return self.verify_checkpoint(path)
        except OSError:
            return self.verify_checkpoint(path)

    def _relist(self, plan: CheckpointPlan, position: int, bad: set[str]) -> tuple[str, ...]:
        """Write a `checkpoint` file without bad checkpoints. Return the paths in it."""
        good = self.candidates[position]
        older = [c for c in self.candidates[position + 1 :] if self.is_there(c.path)]
        older = [c for c in older if c.listed] if good.listed and not self.is_garbled else older
        older = older[: plan.max_to_keep - 1] if plan.max_to_keep > 0 else []
        unread = [c for c in self.candidates[:position] if c.listed and c.path not in bad]
        paths = tuple(c.path for c in (*reversed(older), good, *reversed(unread)))
        with contextlib.suppress(OSError):  # the next search finds the same again
            self.write_list(plan, paths)
        return paths


def _nothing_good(plan: CheckpointPlan, listing: Listing, rejected: list[Rejected]) -> str:
    lines = [f"{listing.directory} holds checkpoints, and none of them can be restored:"]
    lines += [f"  {listing.trouble}"] if listing.trouble else []
    lines += [f"  {rejection.path}: {rejection.why}" for rejection in rejected]
    lines += [] if rejected or listing.trouble else ["  there are only remains of them"]
    lines.append(
        f"Put a good checkpoint there and name it in {plan.latest_filename}; or, to begin again from step 0, move "
        f"{listing.directory}/{plan.latest_filename} and {listing.directory}/{listing.basename}* away."
    )
    return "\n".join(lines)

"""Keep two runs from writing to one checkpoint directory at a URL.

url_files.py uses it.  A URL has no lock or lease, and TensorFlow's filesystem has no conditional
writes.  So the run that began last owns the directory, and `procsv-writer.json` in it names that
run.

Every other run notices.  It reads the file before it changes an object, and again after it has
replaced the list of checkpoints.  If it has lost the directory by then, it puts the old list back.
The owner lists its own checkpoints again with its next save.

One loss remains.  Between such a check and the call after it, the directory can change owners.  If
that call overwrites the new owner's checkpoint of the same step, the checkpoint cannot be restored.
"""

from __future__ import annotations

import socket

import msgspec

from procsv.base.encoding import decode_json, encode_json
from procsv.services.checkpoint.remote import gfile
from procsv.services.checkpoint.store.service_state import StoredState

WRITER = "procsv-writer.json"


class RemoteFenced(OSError):
    """Another run has begun in this directory."""


class _Writer(msgspec.Struct, frozen=True):
    run: str
    host: str  # for people


class RemoteFence:
    def __init__(self, run: str, memory: StoredState) -> None:
        """`memory`: records, on this machine, which run has taken which directory.

        So a restarted service does not take a directory back from a later owner.
        """
        self._run, self._memory = run, memory
        self.displaced: dict[str, str] = {}  # directory -> the run that owned it before

    def claim(self, directory: str) -> None:
        """Takes the directory, once in the life of the run.

        After an OSError the caller tries again.
        """
        if self._memory.claims(directory) == self._run:
            return
        found = self._read_writer(directory)
        if found is None or found.run != self._run:
            if found is not None:
                self.displaced[directory] = found.run
                self._memory.note_runs(sorted({*self._memory.runs(), found.run}))
                # Killed here: the next service knows, too, that the other run's snapshots belong to this directory.
            gfile.make_dirs(directory)
            gfile.replace(gfile.join(directory, WRITER), encode_json(_Writer(self._run, socket.gethostname())))
        # Killed here: the directory is ours; the next service finds our name in it and only notes the claim.
        self._memory.note_claim(directory, self._run)

    def check_fence(self, directory: str) -> None:
        """Raises RemoteFenced if another run owns the directory.

        A missing or garbled file does not count as another run's.
        """
        found = self._read_writer(directory)
        if found is not None and found.run != self._run:
            raise RemoteFenced(
                f"a run on {found.host} has begun to save in {directory}, and this one saves there no more; if it is this one that is to go on, "
                "end the other one and start this one again"
            )

    def _read_writer(self, directory: str) -> _Writer | None:
        try:
            return decode_json(gfile.read_file(gfile.join(directory, WRITER)), _Writer)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

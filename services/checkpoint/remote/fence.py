"""Fence of a checkpoint directory that is a URL: the name of the run that has begun there last, in `procsv-writer.json`.

Used by url_files.py.  No lock or lease is there, and TensorFlow's filesystem can do nothing on condition, so that the one that has begun last has
the directory, and every other one finds that out: it looks before each object that it changes, and once more when it has replaced the list
of checkpoints.  What it has replaced within the call that followed the last look is put back, and the run that has the directory
lists its own again with its next save.  A checkpoint of the same step that is overwritten in that very call cannot be brought back.
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
        """`memory`: on this machine, of whether the run has ever had the directory: a service that is started again takes it from nobody."""
        self._run, self._memory = run, memory
        self.displaced: dict[str, str] = {}  # directories in which another run was before, and which

    def claim(self, directory: str) -> None:
        """Takes the directory, once in the life of the run.  OSError passes through: it is tried again."""
        if self._memory.claims(directory) == self._run:
            return
        found = self._read_writer(directory)
        if found is None or found.run != self._run:
            if found is not None:
                self.displaced[directory] = found.run
                self._memory.note_runs(sorted({*self._memory.runs(), found.run}))
                # killed here: what that run had in memory is of this directory, which the next service knows as well
            gfile.make_dirs(directory)
            gfile.replace(gfile.join(directory, WRITER), encode_json(_Writer(self._run, socket.gethostname())))
        # killed here: it is ours, and the next service takes it once more
        self._memory.note_claim(directory, self._run)

    def check_fence(self, directory: str) -> None:
        """RemoteFenced if it is another run's by now.  One whose file is gone, or garbled, is taken as it was."""
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

"""Put files in place that trainers hand over in addition to their state: Keras' model files.

A *parcel* is such a file in shared memory, with the path where it belongs (ipc/shm/file_parcel.py).
process.py uses this module on its main thread.  The disk thread places files and writes checkpoints
in the order in which the messages arrive.  So when a checkpoint records that a file was saved, the
file is in place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from procsv.base.errors import strip_numbers
from procsv.ipc.messaging.checkpoint_messages import FilePlaced, PlaceFile
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.shm.file_parcel import BadParcel, FileOrder, is_parcel, read_order
from procsv.services.checkpoint.environment import CheckpointEnvironment
from procsv.services.checkpoint.worker import Worker

RETRY_S = 10.0  # pause after a failure


class FileOrders:
    """The parcels that are not in place yet."""

    def __init__(
        self, environment: CheckpointEnvironment, disk: Worker, reply: Callable[[Received, FilePlaced], None]
    ) -> None:
        self._environment, self._disk, self._reply = environment, disk, reply
        self._askers: dict[Path, list[Received]] = {}  # parcel in progress -> its requests
        self._paths: dict[Path, str] = {}  # parcel in progress -> where its file belongs
        self._failed: dict[Path, str] = {}  # parcel -> where its file belongs
        self._retry_s = 0.0
        for parcel in environment.parcels():
            self._begin(parcel, [])

    @property
    def is_busy(self) -> bool:
        return bool(self._askers)

    def place(self, received: Received, message: PlaceFile) -> None:
        """Places a file.  Answers once the file is in place, or with the reason why it is not."""
        parcel = Path(message.parcel)
        if parcel in self._askers:
            self._askers[parcel].append(received)
        elif parcel in self._environment.parcels():
            self._begin(parcel, [received])
        else:  # an earlier request, or this service's start, has already placed the parcel
            error = "" if is_parcel(parcel) else f"{parcel} is not a parcel of this run"
            self._reply(received, FilePlaced(message.parcel, error))

    def retry(self, now_s: float, is_last: bool) -> None:
        """Tries failed parcels again, every RETRY_S.

        `is_last`: try once more now, and give up if that fails.  A parcel waits while a newer one
        of the same file is in progress, because it would be placed after it.
        """
        if not self._failed or (now_s < self._retry_s and not is_last):
            return
        self._retry_s = now_s + RETRY_S
        due = [parcel for parcel, path in self._failed.items() if path not in self._paths.values()]
        for parcel in due:
            del self._failed[parcel]
            if parcel.exists():  # otherwise the trainer has placed a newer one itself
                self._begin(parcel, [], gives_up=is_last)

    def _begin(self, parcel: Path, askers: list[Received], gives_up: bool = False) -> None:
        self._askers[parcel], self._paths[parcel] = askers, _target(parcel)

        def done(order: FileOrder) -> None:
            self._end_parcel(parcel, order.path, "")
            # Other failed parcels for the same path count as older, so give them up.
            for older in [one for one, path in self._failed.items() if path == order.path]:
                del self._failed[older]
                older.unlink(missing_ok=True)

        def failed(error: Exception) -> None:
            path, keeps = _target(parcel), isinstance(error, OSError) and not gives_up
            self._end_parcel(parcel, path, f"{path} is not written: {strip_numbers(str(error))}")
            if keeps and parcel.exists():
                self._failed[parcel] = path
                return
            print(f"procsv checkpoint: giving up on {path}: {error}", file=sys.stderr, flush=True)
            parcel.unlink(missing_ok=True)

        self._disk.run_job(lambda: self._environment.place(parcel), done, failed)

    def _end_parcel(self, parcel: Path, path: str, error: str) -> None:
        del self._paths[parcel]
        for asker in self._askers.pop(parcel):
            self._reply(asker, FilePlaced(path, error))


def _target(parcel: Path) -> str:
    try:
        return read_order(parcel).path
    except (OSError, BadParcel):
        return str(parcel)

"""Write graph.pbtxt in a thread, because printing a large graph takes half a minute.

process.py uses it.  Records do not wait for the thread.  If the disk refuses a job, the thread
retries until it works.  A job that can never work (the parcel holds no GraphDef) is reported and
dropped.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from google.protobuf import text_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tensorboard.compat.proto.graph_pb2 import GraphDef

from procsv.base.system.atomic_file import replace_file
from procsv.base.system.failpoints import declare, failpoint
from procsv.ipc.messaging.endpoint import Received
from procsv.ipc.messaging.summary_messages import GraphText

RETRY_S = 2.0  # pause before a full disk is tried again
PIECE_BYTES = 64 * 1024  # how much of a GraphDef is printed at a time

_VARINT, _LENGTH_DELIMITED = 0, 2  # protobuf's wire types

declare("summary.before_graph_text")


def print_graph(parcel: Path, path: Path) -> None:
    """Writes the serialized GraphDef in `parcel` to `path`, in tf.io.write_graph's text format.

    ValueError if the parcel holds no GraphDef.  If the parcel is missing, the graph is already
    printed: removing the parcel is the last step, so only the acknowledgement was lost.
    """
    try:
        source = parcel.open("rb")
    except FileNotFoundError:
        return
    with source:
        path.parent.mkdir(parents=True, exist_ok=True)
        failpoint("summary.before_graph_text")
        replace_file(path, read_texts(source))  # killed before or after: the sender repeats its request
    parcel.unlink(missing_ok=True)


def read_texts(source: BinaryIO) -> Iterator[bytes]:
    """Yields the text of the GraphDef in `source`, a few nodes at a time.

    Printing it whole would take ten times its size in memory.
    """
    for piece in _pieces(source):
        try:
            text: str = text_format.MessageToString(GraphDef.FromString(piece))
        except DecodeError as error:
            raise ValueError(f"{source.name} holds no GraphDef: {error}") from error
        yield text.encode()


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    """Yields serialized messages that together merge into the message in `source`.

    Each holds a few fields of that message.  It is large only if a single field is large.
    """
    piece, size = bytearray(), os.fstat(source.fileno()).st_size
    while tag := source.read(1):
        # A GraphDef's fields have numbers below 16, so a tag is one byte.
        if tag[0] & 0x80 or (kind := tag[0] & 7) not in (_VARINT, _LENGTH_DELIMITED):
            raise ValueError(f"{source.name} holds no GraphDef")
        number, value = _varint(source)
        piece += tag + number
        if kind == _LENGTH_DELIMITED:
            data = source.read(min(value, size))
            if len(data) < value:
                raise ValueError(f"{source.name} holds no whole GraphDef")
            piece += data
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def _varint(source: BinaryIO) -> tuple[bytes, int]:
    """Reads a varint; returns its bytes and its value."""
    read, value = b"", 0
    for shift in range(0, 70, 7):
        byte = source.read(1)
        if not byte:
            break
        read += byte
        value |= (byte[0] & 0x7F) << shift
        if not byte[0] & 0x80:
            return read, value
    raise ValueError(f"{source.name} holds no GraphDef")


class GraphPrinter:
    """The printing thread, its jobs, and the finished jobs that are not acknowledged yet."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._jobs: queue.SimpleQueue[tuple[Received, GraphText] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.pending = 0  # jobs that `take_printed` has not returned yet
        self.error = ""  # why the current job fails

    def print_later(self, received: Received, job: GraphText) -> None:
        self.pending += 1
        self._jobs.put((received, job))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="graph text", daemon=True)
            self._thread.start()

    def take_printed(self) -> list[Received]:
        """Returns the finished requests since the last call, for the caller to acknowledge."""
        found: list[Received] = []
        while not self._done.empty():
            found.append(self._done.get())
        self.pending -= len(found)
        return found

    def _run(self) -> None:
        while not self._stopping.is_set() and (job := self._jobs.get()) is not None:
            received, message = job
            if self._print(Path(message.parcel), Path(message.path)):
                self._done.put(received)
                self._wake()

    def _print(self, parcel: Path, path: Path) -> bool:
        """Tries until the graph is printed or the job proves impossible, and then returns True.

        False if the process ends first.
        """
        while not self._stopping.is_set():
            try:
                print_graph(parcel, path)
            except OSError as error:
                if self.error != (text := f"{path}: {error}"):
                    print(f"procsv summary: {text}; trying again", file=sys.stderr, flush=True)
                    self.error = text
                self._stopping.wait(RETRY_S)
            except ValueError as error:
                print(f"procsv summary: {error}", file=sys.stderr, flush=True)
                parcel.unlink(missing_ok=True)
                return True
            else:
                self.error = ""
                return True
        return False

    def close(self) -> None:
        """Asks the thread to end, and does not wait for it.

        If it ends in the middle of a job, the next process does the job again.  The file is
        replaced as a whole, so it is never torn.
        """
        self._stopping.set()
        self._jobs.put(None)

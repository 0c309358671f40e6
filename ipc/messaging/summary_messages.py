"""Define the messages to the summary service, and its answers.

They carry event records, metrics, and graphs to write as text.  They are pure data, bodies for
messages.py.  A large event record is in a parcel file, and the message only names that file.
"""

from __future__ import annotations

from procsv.ipc.messaging.message import EVENT_SERVICE, PROGRAM, SUMMARY, WATCHDOG, Contract, Message


class Written(Message, frozen=True):
    """Says that records up to `through` are in the event file (0: none yet).

    `through` -1: the service has not opened this stream, so the sender must open it again.
    """

    contract = Contract(EVENT_SERVICE, PROGRAM, is_reliable=False)

    writer: str
    through: int
    error: str  # why records cannot be written now; the sender keeps them and resends them.  "" if they can


class OpenWriter(Message, frozen=True):
    """Says that records of stream `writer` follow; they go to a new event file in `logdir`.

    After a restart of the service, the answer says where to continue.
    """

    contract = Contract(PROGRAM, EVENT_SERVICE, (Written,), is_reliable=False)

    writer: str  # "<incarnation>-<number>", a name for one event file
    logdir: str
    filename_suffix: str


class Records(Message, frozen=True):
    """Carries consecutive event records `first`, `first` + 1, … of one stream.

    If the message is lost, the sender resends everything after the last written record.  A record
    is the bytes of a serialized Event.  An empty record stands for the one in the parcel file that
    `parcels` names under the record's number.
    """

    contract = Contract(PROGRAM, EVENT_SERVICE, (Written,), is_reliable=False)

    writer: str
    first: int
    records: tuple[bytes, ...]
    parcels: dict[int, str]


class CloseWriter(Message, frozen=True):
    """Says that stream `writer` ends after record `last`."""

    contract = Contract(PROGRAM, EVENT_SERVICE, (Written,), is_reliable=False)

    writer: str
    last: int


class RunMetrics(Message, frozen=True):
    """Carries metrics of the run itself, for TensorBoard; the next message replaces a lost one."""

    contract = Contract(WATCHDOG, EVENT_SERVICE, is_reliable=False)

    wall_s: float  # Unix seconds
    step: int  # seconds of the run so far: they always rise, unlike a global step
    values: dict[str, float]  # by tag


class GraphText(Message, frozen=True):
    """Asks to write the serialized GraphDef in `parcel` as text to `path`, atomically.

    Acknowledged once the file is in place and the parcel is removed.
    """

    contract = Contract(PROGRAM, SUMMARY)

    parcel: str
    path: str


# -- parcels: records that are too large for a message are in files in shared memory -----------------------------------
PARCEL_GLOB = "event.*"


def parcel_name(writer: str, number: int) -> str:
    """Returns the file name for a record that is too large for a message."""
    return f"event.{writer}.{number}"


def parcel_writer(name: str) -> str:
    """Returns the stream that a parcel of this name belongs to."""
    return name.removeprefix("event.").rpartition(".")[0]

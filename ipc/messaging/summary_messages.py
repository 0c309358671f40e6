"""Messages to the summary service, and its answers: event records, figures of the run, and graphs as text.

Pure data, bodies of messages.py.  Large event records lie in parcel files, which messages name.
"""

from __future__ import annotations

from procsv.ipc.messaging.message import EVENT_SERVICE, PROGRAM, SUMMARY, WATCHDOG, Contract, Message


class Written(Message, frozen=True):
    """Says that records up to `through` are in the event file (0: none yet).

    `through` -1: the stream is not open here; open it again.
    """

    contract = Contract(EVENT_SERVICE, PROGRAM, is_reliable=False)

    writer: str
    through: int
    error: str  # why records are not getting to the file ("" if they are); they are kept and tried again


class OpenWriter(Message, frozen=True):
    """Says that records of stream `writer` follow; they go to a new event file in `logdir`.

    The answer says from where to go on, after a restart of the service.
    """

    contract = Contract(PROGRAM, EVENT_SERVICE, (Written,), is_reliable=False)

    writer: str  # "<incarnation>-<number>", a name for one event file
    logdir: str
    filename_suffix: str


class Records(Message, frozen=True):
    """Carries consecutive event records `first`, `first` + 1, … of one stream.

    If they are lost, the sender goes back to what was written last.  A record is the bytes of a serialized Event; an empty
    one is in the parcel file that `parcels` names by its number.
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
    """Carries figures of the run itself, for TensorBoard; a lost one is replaced by the next."""

    contract = Contract(WATCHDOG, EVENT_SERVICE, is_reliable=False)

    wall_s: float  # Unix seconds
    step: int  # of the record: the second of the run, which only rises, as a global step does not
    values: dict[str, float]  # by tag


class GraphText(Message, frozen=True):
    """Asks to write the serialized GraphDef in `parcel` as text to `path`, atomically.

    Acknowledged when the file is in place; the parcel is removed then.
    """

    contract = Contract(PROGRAM, SUMMARY)

    parcel: str
    path: str


# -- parcels: what is too large for a message lies in a file of shared memory ------------------------------------------
PARCEL_GLOB = "event.*"


def parcel_name(writer: str, number: int) -> str:
    """The file name of a record that is too large for a message."""
    return f"event.{writer}.{number}"


def parcel_writer(name: str) -> str:
    """The stream that a parcel of this name belongs to."""
    return name.removeprefix("event.").rpartition(".")[0]

"""Decode a line of the journal: a time, a process and an entry."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from msgspec import Meta, Struct

from procsv.base.encoding import decode_json
from procsv.base.journal.entries import STEP_MAX, TIME_MAX, AnyEntry, Entry

KINDS: dict[str, type[Entry]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyEntry)}


class Head(Struct, frozen=True):
    """The fields that every line has."""

    time: Annotated[float, Meta(ge=0, le=TIME_MAX, description="Unix seconds")]
    event: str
    role: Annotated[str, Meta(description="the process, and its index where a run has several: trainer, worker.1")]
    incarnation: Annotated[int, Meta(ge=0, le=STEP_MAX, description="which start of that process")]


class Line(Struct, frozen=True):
    time: float
    role: str
    incarnation: int
    entry: Entry

    def as_dict(self) -> dict[str, Any]:
        """Returns the line as it is written, with its fields in order."""
        head = {"time": self.time, "event": self.entry.event, "role": self.role, "incarnation": self.incarnation}
        return head | self.entry.fields()


class Unknown(Entry, frozen=True, kw_only=True):
    """An event that another version of procsv has written."""

    name: str
    own: dict[str, Any]

    @property
    def event(self) -> str:
        return self.name

    def fields(self) -> dict[str, Any]:
        return self.own


def decode_line(data: bytes) -> Line:
    """Decodes a line; msgspec.DecodeError if it is not one.

    Leaves out fields that this version does not know.
    """
    head = decode_json(data, Head)
    kind = KINDS.get(head.event)
    entry = decode_json(data, kind) if kind is not None else _unknown(data, head.event)
    return Line(head.time, head.role, head.incarnation, entry)


def _unknown(data: bytes, event: str) -> Unknown:
    own = {name: value for name, value in decode_json(data, dict).items() if name not in Head.__struct_fields__}
    return Unknown(name=event, own=own)

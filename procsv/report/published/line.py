"""Line of journal.jsonl: what every event has, and the kinds of fields that they share."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Step = Annotated[int, Meta(ge=-1, description="a global step; -1: there was none yet")]
Pid = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Source = Literal["memory", "checkpoint", "fresh", "alive", "chief"]
Reason = Literal["start", "periodic", "final", "crash", "preempt", "manual"]


class Line(Struct, frozen=True, kw_only=True, tag_field="event", forbid_unknown_fields=False):
    """What every line has."""

    time: Annotated[float, Meta(ge=0, description="Unix seconds")]
    role: Annotated[str, Meta(description="the process, and its index where a run has several: trainer, worker.1")]
    incarnation: Annotated[int, Meta(ge=0, description="which start of that process")]

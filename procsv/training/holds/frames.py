"""Frames between a chief that captures and a task on another machine whose steps it holds.  Pure; not messages.py: no envelope, no repetition.

chief -> task   Hold        begin no step: I want to capture.  Answered at once: Held, Within or Refused
                Capturing   all stand, I capture now: from here on it takes no longer than that
                LetGo       go on.  Answered: Released
                Probe       are you there?  Answered: Here
task -> chief   Within      a step is under way; Held follows with its end
                Held        I stand between two steps, and begin none
                Refused     I cannot be held, and why
                Released    I go on; whether I have stood all the time since Held
                Here

Each is of the hold of that `number` by that `owner`.  What is lost with a connection is asked for no more: who captures knows by
Released alone that a task has stood until after the capture.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from procsv.base.errors import PeerError


class Hold(msgspec.Struct, frozen=True, array_like=True, tag=True):
    owner: str
    number: int  # rises
    limit_s: float  # then the task goes on by itself


class Capturing(msgspec.Struct, frozen=True, array_like=True, tag=True):
    owner: str
    number: int
    limit_s: float  # likewise, from now


class LetGo(msgspec.Struct, frozen=True, array_like=True, tag=True):
    owner: str
    number: int


class Probe(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Within(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int


class Held(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int
    why: str


class Released(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int
    is_whole: bool
    held_s: float  # it has stood, by its own clock


class Here(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


T = TypeVar("T")
Order = Hold | Capturing | LetGo | Probe
Answer = Within | Held | Refused | Released | Here

_encoder = msgspec.msgpack.Encoder()
_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def pack(frame: Order | Answer) -> list[bytes]:
    return [_encoder.encode(frame)]


def read_order(frames: list[bytes]) -> Order:
    """PeerError if it is none."""
    return _read(_orders, frames)


def read_answer(frames: list[bytes]) -> Answer:
    """PeerError if it is none."""
    return _read(_answers, frames)


def _read(decoder: msgspec.msgpack.Decoder[T], frames: list[bytes]) -> T:
    try:
        (data,) = frames
        return decoder.decode(data)
    except (ValueError, msgspec.DecodeError) as error:
        raise PeerError(f"no frame of a hold: {error}") from error

"""CURVE keys that follow from a secret which all launches of a run have: none has to be handed from one to the other.

Pure but for the curve's arithmetic.  HKDF with SHA-256 (RFC 5869); each key has a label of its own, and those of one start of a job are
not those of another.  32 bytes of it are an X25519 key as they are: the curve's functions clamp what they are given.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec
import zmq
from zmq.utils import z85

from procsv.ipc.messaging.curve_transport import KeyPair

SALT = b"procsv: launches of one run, version 1"
KEY_BYTES = 32
FINGERPRINT_BYTES = 8


class RunKeys(msgspec.Struct, frozen=True):
    """What all launches of one start of a job know."""

    coordinator: KeyPair
    member: KeyPair  # all members have the same
    fingerprint: str  # tells one secret from another, and says nothing of it

    def __repr__(self) -> str:
        return f"RunKeys({self.fingerprint!r})"  # keys belong in no log


def derive_keys(secret: bytes, scheduler: str) -> RunKeys:
    """`scheduler`: the identity of this start of the job, which all its launches know."""
    key = hmac.digest(SALT, secret, hashlib.sha256)
    return RunKeys(
        _pair(_expand(key, "curve key of the coordinator", scheduler)),
        _pair(_expand(key, "curve key of the members", scheduler)),
        _expand(key, "fingerprint", scheduler)[:FINGERPRINT_BYTES].hex(),
    )


def _expand(key: bytes, label: str, scheduler: str) -> bytes:
    """The first block of HKDF-Expand, which is all that is needed.  No label has a zero byte, so no two are one with what follows."""
    info = label.encode() + b"\0" + scheduler.encode(errors="surrogateescape")
    return hmac.digest(key, info + b"\x01", hashlib.sha256)


def _pair(secret: bytes) -> KeyPair:
    text = z85.encode(secret)
    return KeyPair(zmq.curve_public(text).decode(), text.decode())

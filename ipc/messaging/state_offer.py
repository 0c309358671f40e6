"""Offer of a snapshot in memory to another machine: where it is fetched, with which keys, and what it is.

Pure data, in RestoreFrom (messages.py).  The snapshot itself comes by ipc/bulk.  The keys are made for the service that offers it, and
travel on the channels that are the run's own already; they are in no file.
"""

from __future__ import annotations

import msgspec


class StateOffer(msgspec.Struct, frozen=True):
    port: int  # of the coordinator's machine
    server_key: str  # of CURVE, in Z85: the sender's public one
    client_public: str  # and the pair for whoever fetches
    client_secret: str
    token: bytes  # which offer it is
    size: int  # bytes of the slot, header and table of contents included
    sequence: int  # of the snapshot
    contents_hash: int  # xxh3_64 of the slot's table of contents, which has the checksums of the tensors

    def __repr__(self) -> str:
        return f"StateOffer({self.sequence}, {self.size} bytes)"  # keys belong in no log

"""The base of all messages (messages.py, and the files of bodies beside it)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from procsv.ipc.messaging.contract import Contract


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all bodies."""

    contract: ClassVar[Contract]

"""The base of all messages (messages.py, member_messages.py)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from procsv.ipc.messaging.contract import Contract


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all bodies."""

    contract: ClassVar[Contract]

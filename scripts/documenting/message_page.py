"""docs/messages.md: the table of messages, from the contracts that their classes declare."""

from __future__ import annotations

import inspect

from procsv.ipc.messaging import (
    checkpoint_messages,
    member_messages,
    messages,
    summary_messages,
    watchdog_messages,
)
from procsv.ipc.messaging.message import ANY, Message, Parties

_NAMES = {
    "program": "program",
    "service": "each service",
    "state service": "services that keep state",
    "event service": "services that take events",
    "checkpoint": "checkpoint service",
    "summary": "summary service",
    "watchdog": "watchdog",
    "member": "member",
    "cli": "command line",
}
_HEAD = """\
# Messages

`scripts/docs` makes this page from `ipc/messaging/messages.py` and the files of messages beside it;
do not edit. The *program* is the process that runs the user's program: a trainer. A *member* is the
watchdog of another machine than the coordinator's ([several machines](machines.md)).
`procsv/base/service_table.py` says which services keep state and which take events. The
[glossary](glossary.md) explains the other terms.

A reliable message is repeated until its receiver answers or acknowledges it. Any other may be lost;
the docstring of its class says what happens then. Both ends check the contract. Sending what a role
may not send is a bug and raises. A message that arrives against its contract is refused and counted
(`dropped_messages` in `procsv status --json`).

How to add a message is in [CONTRIBUTING.md](../CONTRIBUTING.md#add-a-message).

| message | from | to | answered by | reliable | purpose |
|---|---|---|---|---|---|
"""


def message_page() -> str:
    files = (messages, checkpoint_messages, watchdog_messages, summary_messages, member_messages)
    kinds = [kind for file in files for kind in Message.__subclasses__() if kind.__module__ == file.__name__]
    return _HEAD + "".join(map(_row, kinds))


def _row(kind: type[Message]) -> str:
    contract = kind.contract
    answers = [f"`{answer.__name__}`" for answer in contract.answers] or ["`Ack`"] * contract.is_reliable
    cells = (
        f"`{kind.__name__}`",
        _show(contract.senders),
        _show(contract.receivers),
        ", ".join(answers) or "nothing",
        "yes" if contract.is_reliable else "no",
        _summary(kind),
    )
    return f"| {' | '.join(cells)} |\n"


def _show(parties: Parties) -> str:
    return "any" if parties == ANY else ", ".join(name for party, name in _NAMES.items() if party in parties)


def _summary(kind: type[Message]) -> str:
    text = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    return text.replace("|", "\\|")

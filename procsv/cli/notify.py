"""`python -m procsv.cli.notify`: send the event on standard input through Apprise.

It goes to the URLs that the event contains. The watchdog starts one process per event for
`--notify`. The URLs may hold passwords, so they come on standard input: a command line is visible
to everybody on the machine.
"""

from __future__ import annotations

import logging
import sys

from procsv.base.encoding import decode_json

FAILURES = frozenset({"gave_up", "task_given_up", "exited", "hang_detected", "checkpoint_failed"})


def main() -> int:
    """Return 1 if a notification could not be sent. Apprise's own messages go to the log of the
    commands.
    """
    from apprise import Apprise, NotifyType

    event = decode_json(sys.stdin.buffer.read(), dict[str, object])
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    people = Apprise()
    people.add(str(event["urls"]))
    title = f"procsv: {event['target']} on {event['host']}"
    body = f"{event['text']}\n{event['logdir']}"
    kind = NotifyType.FAILURE if event["event"] in FAILURES else NotifyType.INFO
    return 0 if people.notify(body=body, title=title, notify_type=kind) else 1


if __name__ == "__main__":
    sys.exit(main())

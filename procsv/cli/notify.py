"""`python -m procsv.cli.notify`: send the event on standard input through Apprise.

With `--notify`, the watchdog starts this module in a new process for each event. The event contains
the URLs to notify. URLs may hold passwords, so the watchdog sends them through standard input:
everybody on the machine can see a command line.
"""

from __future__ import annotations

import logging
import sys

from procsv.base.encoding import decode_json

FAILURES = frozenset({"gave_up", "task_given_up", "exited", "hang_detected", "checkpoint_failed"})


def main() -> int:
    """Return 0 if all notifications were sent, 1 if not. Apprise's warnings go to stderr."""
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

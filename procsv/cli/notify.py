"""`python -m procsv.cli.notify`: sends the event on its standard input to the URLs in it, through Apprise.

Started by the watchdog for `--notify`, one process an event.  URLs come by standard input, as they may hold passwords, which
a command line would show to everybody on the machine.
"""

from __future__ import annotations

import logging
import sys

from procsv.base.encoding import decode_json

FAILURES = frozenset({"gave_up", "task_given_up", "exited", "hang_detected", "checkpoint_failed"})


def main() -> int:
    """Exit code: 1 if somebody could not be told; what Apprise says of it goes to the log of the commands."""
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

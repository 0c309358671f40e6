"""Errors of a session that tell of another task which is gone, and which task that is.

Used by last_words.py.  Pure.  TensorFlow's runtime raises them in every task that was using the one that has died: they are nobody's
fault here, and come again until that task is back.
"""

from __future__ import annotations

import re

KINDS = frozenset({"UnavailableError", "AbortedError", "DeadlineExceededError"})  # where they name a task
RESTARTED = re.compile(
    r"[Ii]ncarnation|[Ss]ession handle is not found|No worker known as"
)  # the server is another one now
COLLECTIVE = "Collective ops is aborted by"  # what a member of a collective is told, by its connection or TensorFlow's heartbeats
_REMOTE = re.compile(r"remote target /job:(?!localhost/)(\w+)/replica:\d+/task:(\d+)")
_REPORTED = re.compile(r"Error reported from /job:(\w+)(?:/replica:\d+)?/task:(\d+)")  # by TensorFlow's heartbeats
_TASK = re.compile(r"/job:(?!localhost/)(\w+)/replica:\d+/task:(\d+)")


def find_lost_peer(error: BaseException) -> str:
    """The task that `error` says is gone, as `ps.0`; "a server" or "another member" where it has no name; "" if it says nothing of the kind."""
    kind, message = type(error), str(error)
    if not kind.__module__.startswith("tensorflow."):
        return ""
    is_collective = COLLECTIVE in message  # then any other task that is named is the one that says so
    named = _REMOTE.search(message) or (_REPORTED if is_collective else _TASK).search(message)
    if RESTARTED.search(message) or (kind.__name__ in KINDS and (named or is_collective)):
        unnamed = "another member" if is_collective else "a server"
        return f"{named[1]}.{named[2]}" if named else unnamed
    return ""

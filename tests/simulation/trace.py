"""A fact of a simulated world in one line, for people."""

from __future__ import annotations

from typing import Any

from procsv.watchdog.core.events import Ended, Said, Ticked
from tests.simulation import history

LINE_MAX = 220


def show(fact: history.Fact) -> str:
    """One line; "" for what would only be noise: a tick that led to nothing."""
    match fact:
        case history.CoreActed(Ticked(), []):
            return ""
        case history.CoreActed(event, actions):
            text = f"core: {_event(event)} -> {', '.join(_short(action) for action in actions) or 'nothing'}"
        case history.Born(role, incarnation, pid):
            text = f"{role} {incarnation} starts (pid {pid})"
        case history.Died(role, incarnation, pid, exit, by):
            text = f"{role} {incarnation} (pid {pid}) is dead: {exit}, by {by}"
        case history.Received(server, role, incarnation, body):
            text = f"{server} hears {body} of {role} {incarnation}"
        case history.Journaled(event, role, incarnation, fields):
            text = f"journal: {event} {role} {incarnation} {fields}"
        case history.Acknowledged(news, role):
            text = (
                f"{role} hears that step {news.step} is durable ({news.path}, sequence {news.sequence}, {news.reason})"
            )
        case _:
            text = _short(fact)
    return text if len(text) <= LINE_MAX else f"{text[: LINE_MAX - 1]}…"


def _event(event: Any) -> str:
    match event:
        case Ticked():
            return "time"
        case Said(role, incarnation, body):
            return f"{role} {incarnation} says {body!r}"
        case Ended(role, incarnation, exit):
            return f"{role} {incarnation} is dead ({exit})"
        case _:
            return repr(event)


def _short(thing: Any) -> str:
    return repr(thing).replace("event=", "").replace("role=", "").replace("fields=", "")

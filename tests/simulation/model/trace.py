"""Describe a fact of a simulated world in one line."""

from __future__ import annotations

from typing import Any

from procsv.watchdog.core.events import Ended, Said, Ticked
from tests.simulation.model import history

LINE_MAX = 220


def show(fact: history.Fact) -> str:
    """Return one line, or "" for noise such as a tick without effect."""
    match fact:
        case history.CoreActed(Ticked(), []):
            return ""
        case history.CoreActed(event, actions):
            text = f"core: {_event(event)} -> {', '.join(_short(action) for action in actions) or 'nothing'}"
        case history.Born(task, incarnation, pid):
            text = f"{task} {incarnation} starts (pid {pid})"
        case history.Died(task, incarnation, pid, exit, by):
            text = f"{task} {incarnation} (pid {pid}) is dead: {exit}, by {by}"
        case history.Received(server, task, incarnation, body):
            text = f"{server} hears {body} of {task} {incarnation}"
        case history.Journaled(event, task, incarnation, fields):
            text = f"journal: {event} {task} {incarnation} {fields}"
        case history.Acknowledged(news, task):
            text = (
                f"{task} hears that step {news.step} is durable ({news.path}, sequence {news.sequence}, {news.reason})"
            )
        case _:
            text = _short(fact)
    return text if len(text) <= LINE_MAX else f"{text[: LINE_MAX - 1]}…"


def _event(event: Any) -> str:
    match event:
        case Ticked():
            return "time"
        case Said(task, incarnation, body):
            return f"{task} {incarnation} says {body!r}"
        case Ended(task, incarnation, exit):
            return f"{task} {incarnation} is dead ({exit})"
        case _:
            return repr(event)


def _short(thing: Any) -> str:
    return repr(thing).replace("event=", "").replace("role=", "").replace("fields=", "")

"""docs/state-machines.md: diagrams of the state machines, drawn from the tables that the code uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from procsv.ipc.shm import slot_state
from procsv.training.snapshots import snapshot_state
from procsv.watchdog.core.task import lifecycle
from procsv.watchdog.host import standby

_HEAD = """\
# State machines

`scripts/docs` makes this page from the tables in the code; do not edit. An arrow is labelled
`EVENT`, or `EVENT / ACTIONS` where the event leads to any. Events that change nothing are not
drawn. An event without a row in its table raises. The [glossary](glossary.md) explains
the terms.
"""


StateT = TypeVar("StateT", bound=Enum)
EventT = TypeVar("EventT", bound=Enum)


@dataclass(frozen=True)
class Row:
    before: str
    event: str
    after: str
    actions: tuple[str, ...] = ()


def state_page() -> str:
    life = [
        Row(state.name, event.name, edge.to.name, tuple(action.name for action in edge.do))
        for (state, event), edge in lifecycle.TRANSITIONS.items()
    ]
    live = {state.name for state in lifecycle.LIVE}
    waiting = [
        Row(state.name, event.name, after.name, tuple(action.name for action in actions))
        for (state, event), (after, actions) in standby.TRANSITIONS.items()
    ]
    sections = (
        ("Trainer", lifecycle, _as_one(life, live, "LIVE"), "LIVE is any state of the next diagram."),
        ("Phases of a live trainer", lifecycle, [r for r in life if {r.before, r.after} <= live], ""),
        ("Standby", standby, waiting, ""),
        ("Snapshot slot", slot_state, _plain(slot_state.TRANSITIONS), ""),
        ("Snapshot", snapshot_state, _plain(snapshot_state.TRANSITIONS), ""),
    )
    return _HEAD + "".join(_section(title, module.__name__, rows, more) for title, module, rows, more in sections)


def _plain(table: Mapping[tuple[StateT, EventT], StateT]) -> list[Row]:
    return [Row(state.name, event.name, after.name) for (state, event), after in table.items()]


def _as_one(rows: Iterable[Row], states: set[str], name: str) -> list[Row]:
    """Return the rows with `states` drawn as one state."""
    names = dict.fromkeys(states, name)
    return [Row(names.get(r.before, r.before), r.event, names.get(r.after, r.after), r.actions) for r in rows]


def _section(title: str, module: str, rows: Iterable[Row], more: str) -> str:
    source = module.removeprefix("procsv.") if module.startswith("procsv.ipc") else module
    text = f"\n## {title}\n\nFrom `{source.replace('.', '/')}.py`.{' ' * bool(more)}{more}\n\n"
    return text + "```mermaid\nstateDiagram-v2\n" + "".join(_arrows(rows)) + "```\n"


def _arrows(rows: Iterable[Row]) -> Iterable[str]:
    """Yield one arrow for all events that lead from one state to another with the same actions."""
    arrows: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for row in rows:
        if row.before != row.after or row.actions:
            events = arrows.setdefault((row.before, row.after, row.actions), [])
            if row.event not in events:
                events.append(row.event)
    order = list(dict.fromkeys(before for before, _, _ in arrows))
    for (before, after, actions), events in sorted(arrows.items(), key=lambda arrow: order.index(arrow[0][0])):
        does = f" / {', '.join(actions)}" if actions else ""
        yield f"    {before} --> {after}: {', '.join(events)}{does}\n"

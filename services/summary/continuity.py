"""`python -m procsv.services.summary.continuity DIR`: check event files for gaps and repeats.

`procsv drill` runs it.  It only reads, and prints JSON.  The files of a run are continuous if
TensorBoard draws unbroken curves from them.  This needs three things:

* Every record is whole.
* Steps go backwards only after a START event, which the session log writes at a restart.
* No tag has two values at one step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tensorboard.compat.proto.event_pb2 import Event

from procsv.base.encoding import encode_json
from procsv.services.summary.event_file import read_records

PROBLEMS_MAX = 20


class Continuity(msgspec.Struct, kw_only=True):
    files: int
    records: int
    tags: list[str]
    problems: list[str]


def check_continuity(directory: Path) -> Continuity:
    """Checks the event files below `directory`, except those in a `procsv` directory.

    As in TensorBoard, the files of one folder are one series.
    """
    found = Continuity(files=0, records=0, tags=[], problems=[])
    folders = sorted({path.parent for path in directory.rglob("events.out.tfevents.*")})
    for folder in folders:
        if "procsv" not in folder.relative_to(directory).parts:
            _check_folder(folder, found)
    del found.problems[PROBLEMS_MAX:]
    return found


def _check_folder(folder: Path, found: Continuity) -> None:
    seen: dict[str, dict[int, str]] = {}  # tag -> step -> file, for the steps that TensorBoard shows
    for path in sorted(folder.glob("events.out.tfevents.*")):
        found.files += 1
        for event in _events(path, found):
            found.records += 1
            if event.HasField("session_log") and event.session_log.status == event.session_log.START:
                _purge(seen, event.step)
            elif event.HasField("summary"):
                _enter(event, path, seen, found)
    found.tags += sorted(seen)


def _events(path: Path, found: Continuity) -> Iterator[Event]:
    records, rest = read_records(path)
    if rest:
        found.problems.append(f"{path.name}: {rest} bytes at its end are no whole record")
    for record in records:
        yield Event.FromString(record)


def _purge(seen: dict[str, dict[int, str]], step: int) -> None:
    """Forgets the steps from `step` on: TensorBoard hides them after a restart at `step`."""
    for steps in seen.values():
        for later in [one for one in steps if one >= step]:
            del steps[later]


def _enter(event: Event, path: Path, seen: dict[str, dict[int, str]], found: Continuity) -> None:
    for value in event.summary.value:
        steps = seen.setdefault(value.tag, {})
        if event.step in steps:
            found.problems.append(f"{path.name}: {value.tag} at step {event.step} occurs twice")
        elif steps and event.step < max(steps):
            found.problems.append(
                f"{path.name}: {value.tag} goes from step {max(steps)} back to {event.step}, unmarked"
            )
        steps[event.step] = path.name


def main(argv: list[str]) -> int:
    try:
        found = check_continuity(Path(argv[0]))
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(encode_json(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Parse the fault plan of a command line: lines of words, a TOML file, and preemptions.

Used by `procsv launch` and `procsv drill`. An unknown word is an error that names the word, its
line and the nearest known word.

    kill trainer at step 50                        exit trainer with 3 after 20s
    kill checkpoint after 10s, 3 times             stop summary for 5s every 200 steps
    kill trainer at random every 30s, 5 times      preempt trainer with grace 10s at step 80
    corrupt logdir by flip at step 90              fill logdir for 10s at step 60

In a file:

    seed = 7
    [[fault]]
    do = "kill trainer at step 50"
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from procsv.base.errors import UserError
from procsv.base.units import parse_duration
from procsv.faults.plan import ACTIONS, HOWS, TARGETS, Action, Plan, PlannedFault, kind_of_target

_SILENT = frozenset({"the", "newest", "messages", "of", "to", "and"})  # parse_fault ignores these words
_ALIASES = {"disk": "logdir", "segv": "segfault", "sigkill": "kill"}
_EXAMPLE = "for example 'kill trainer at step 50'"


def make_plan(
    path: str | None, texts: tuple[str, ...], preempt_every_s: float | None, preempt_grace_s: float, seed: int
) -> Plan:
    """Combine all sources into one plan: a file, lines of words, and random preemptions.

    UserError says what cannot be parsed. If the file has a seed other than 0, it overrides `seed`.
    """
    plan = _read_plan(path) if path is not None else Plan()
    faults = [*plan.faults, *(parse_fault(text) for text in texts)]
    if preempt_every_s is not None:
        faults.append(
            PlannedFault("trainer", "preempt", preempt_grace_s, every_s=preempt_every_s, is_random=True, times=0)
        )
    for fault in faults:
        if faults.count(fault) > 1:
            raise UserError(f"the fault '{fault}' is listed twice; use '2 times' instead")
    return Plan(tuple(faults), plan.seed or seed)


def _read_plan(path: str) -> Plan:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--plan {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--plan {path} is not TOML: {error}") from error
    return parse_plan(text, path)


def parse_fault(text: str) -> PlannedFault:
    """Parse one line of words; UserError says which word is wrong."""
    words = [word for word in text.replace(",", " ").lower().split() if word not in _SILENT]
    if len(words) < 2:
        raise UserError(f"fault {text!r}: expected 'ACTION TARGET [WHEN]'; {_EXAMPLE}")
    action, target = (_ALIASES.get(word, word) for word in words[:2])
    if (action, target) == ("corrupt", "checkpoint"):
        target = "logdir"
    prefix = f"fault {text!r}: "
    _check_target(action, target, prefix)
    fields = _read_clauses(words[2:], prefix)
    fault = _with_argument(PlannedFault(target, cast(Action, action)), ACTIONS[action].argument, fields, prefix)
    fault = _with_time(fault, fields, prefix)
    if fields:
        raise UserError(f"{prefix}{action} does not take {next(iter(fields))!r}")
    return fault


def _read_clauses(words: list[str], prefix: str) -> dict[str, str]:
    """Parse clauses such as `with 3`, `for 5s` or `at step 50` into fields named as in _CLAUSES."""
    rest, fields = " ".join(words), dict[str, str]()
    while rest:
        for pattern, keys in _CLAUSES:
            match = re.match(pattern + r"(?:\s+|$)", rest)
            if match:
                fields.update(zip(keys, match.groups(), strict=False) if match.groups() else ((keys[0], keys[1]),))
                rest = rest[match.end() :]
                break
        else:
            raise UserError(f"{prefix}cannot read {rest!r}; {_EXAMPLE}")
    return fields


# Pattern -> the field that its group fills; for a pattern without a group, the field and its value.
_CLAUSES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    (r"with grace (\S+)", ("grace",)),
    (r"with code (\S+)", ("code",)),
    (r"with (\S+)", ("code",)),
    (r"for (\S+)", ("for",)),
    (r"by (\S+)", ("how",)),
    (r"at step (\S+)", ("at_step",)),
    (r"at random every (\S+)", ("random_every",)),
    (r"after (\S+)", ("after",)),
    (r"every (\S+ steps?)", ("every",)),
    (r"every (\S+)", ("every",)),
    (r"(\S+) times", ("times",)),
    (r"once", ("times", "1")),
    (r"always", ("times", "0")),
    (r"(\d+)(?=\s|$)", ("code",)),
)


def parse_plan(text: str, name: str) -> Plan:
    """Parse the text of a TOML file; `name` is its name in errors."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name} is not TOML: {error}") from error
    for key in content:
        if key not in ("seed", "fault"):
            raise UserError(
                f"{name}, line {_line_of(text, key)}: there is no {key!r}; {_nearest(key, ('seed', 'fault'))}"
            )
    seed, items = content.get("seed", 0), content.get("fault", [])
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UserError(f"{name}, line {_line_of(text, 'seed')}: seed is a whole number, not {seed!r}")
    if isinstance(items, dict):
        raise UserError(f"{name}, line {_line_of(text, '[fault]')}: write [[fault]], as there may be many")
    if not isinstance(items, list) or not items:
        raise UserError(f"{name}: has no [[fault]]; add one")
    return Plan(tuple(_parse_item(item, name, text) for item in items), seed)


def _parse_item(item: object, name: str, text: str) -> PlannedFault:
    """Parse a table with `do`, or plain words: `fault = ["kill trainer at step 50"]`."""
    words = item["do"] if isinstance(item, dict) and item.keys() == {"do"} else item
    if not isinstance(words, str):
        raise UserError(f'{name}: describe a fault in words, do = "kill trainer at step 50", instead of {item!r}')
    try:
        return parse_fault(words)
    except UserError as error:
        raise UserError(f"{name}, line {_line_of(text, words)}: {error}") from error


def _line_of(text: str, words: str) -> int:
    """Return the number of the line that contains `words`, counted from 1.

    Returns 1 if the file spells them differently.
    """
    return next((at for at, line in enumerate(text.splitlines(), 1) if words in line), 1)


def _nearest(word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"


def _check_target(action: str, target: str, prefix: str) -> None:
    if action not in ACTIONS:
        raise UserError(f"{prefix}there is no action {action!r}; {_nearest(action, ACTIONS)}")
    if kind_of_target(target) not in TARGETS:
        raise UserError(f"{prefix}there is no target {target!r}; {_nearest(target, TARGETS)}")
    if kind_of_target(target) not in ACTIONS[action].targets:
        raise UserError(f"{prefix}{action} is for {' or '.join(ACTIONS[action].targets)}, not for {target}")


_ARGUMENT_KEYS = {"code": "code", "seconds": "for", "grace": "grace", "how": "how"}
_GRACE_S = 30.0  # the default grace of a preemption, as on most platforms


def _with_argument(fault: PlannedFault, argument: str, fields: dict[str, str], prefix: str) -> PlannedFault:
    if not argument:
        return fault
    key = _ARGUMENT_KEYS[argument]
    if key not in fields:
        if argument == "grace":
            return msgspec.structs.replace(fault, number=_GRACE_S)
        raise UserError(f"{prefix}{fault.action} needs {_NEEDED[argument]}")
    value = fields.pop(key)
    if argument == "how":
        if value not in HOWS:
            raise UserError(f"{prefix}there is no way {value!r} to corrupt; {_nearest(value, HOWS)}")
        return msgspec.structs.replace(fault, how=value)
    if argument == "code":
        return msgspec.structs.replace(fault, number=float(_whole(value, key, prefix, 0, 255)))
    return msgspec.structs.replace(fault, number=_seconds(value, key, prefix))


_NEEDED = {
    "code": "an exit code: 'with 3'",
    "seconds": "a time: 'for 5s'",
    "how": "a way: 'by flip', 'by truncate' or 'by delete'",
}


def _with_time(fault: PlannedFault, fields: dict[str, str], prefix: str) -> PlannedFault:
    given = [key for key in ("at_step", "after", "random_every", "every") if key in fields]
    if len(given) != 1:
        what = "does not say when" if not given else f"has two times: {' and '.join(given)}"
        raise UserError(f"{prefix}{what}; 'at step 50', 'after 20s' or 'every 30s'")
    value, times = fields.pop(given[0]), fields.pop("times", None)
    if given[0] == "at_step":
        fault = msgspec.structs.replace(fault, at_step=_whole(value, "at_step", prefix, 0, 2**62))
    elif given[0] == "after":
        fault = msgspec.structs.replace(fault, after_s=_seconds(value, "after", prefix, zero=True))
    elif match := re.fullmatch(r"(\S+) steps?", value):
        fault = msgspec.structs.replace(fault, every_steps=_whole(match[1], "every", prefix, 1, 2**62), times=0)
    else:
        every_s, is_random = _seconds(value, "every", prefix), given[0] == "random_every"
        fault = msgspec.structs.replace(fault, every_s=every_s, is_random=is_random, times=0)
    if times is not None:
        fault = msgspec.structs.replace(fault, times=_whole(times, "times", prefix, 0, 10**9))
    return fault


def _whole(text: str, key: str, prefix: str, least: int, most: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        limits = f"from {least} to {most}" if most < 1000 else f"from {least} on"
        raise UserError(f"{prefix}{key} is a whole number {limits}, not {text!r}")
    return number


def _seconds(text: str, key: str, prefix: str, zero: bool = False) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UserError(f"{prefix}{key}: {error}") from None
    if seconds == 0 and not zero:
        raise UserError(f"{prefix}{key} is a time above 0, not {text!r}")
    return seconds

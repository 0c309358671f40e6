"""The fault plan of a command line: lines of words, a TOML file, and preemptions.

Used by `procsv launch` and `procsv drill`.  Every word that is not known is an error that names it, its line, and the nearest that is.

    kill trainer at step 50                        exit trainer with 3 after 20s
    kill checkpoint after 10s, 3 times             stop summary for 5s every 200 steps
    kill trainer at random every 30s, 5 times      preempt trainer with grace 10s at step 80
    corrupt logdir by flip at step 90              fill logdir for 10s at step 60

In a file:

    seed = 7
    [[fault]]
    do = "kill trainer at step 50"
    [[fault]]
    target = "trainer"
    action = "exit"
    code = 3
    every = "200 steps"                            # or "30s"; with  random = true  the mean of random intervals
    times = 4
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from procsv.base.errors import UserError
from procsv.base.units import parse_duration
from procsv.faults.plan import ACTIONS, HOWS, TARGETS, Action, Fault, Plan, kind_of_target

_SILENT = frozenset({"the", "newest", "messages", "of", "to", "and"})
_ALIASES = {"disk": "logdir", "segv": "segfault", "sigkill": "kill"}
_KEYS = ("do", "target", "action", "code", "for", "grace", "how", "at_step", "after", "every", "random", "times")
_EXAMPLE = "for example 'kill trainer at step 50'"


def make_plan(
    path: str | None, texts: tuple[str, ...], preempt_every_s: float | None, preempt_grace_s: float, seed: int
) -> Plan:
    """All of it in one plan; the seed of the file, if it has one, else `seed`.  UserError says what cannot be read."""
    plan = _read_plan(path) if path is not None else Plan()
    faults = [*plan.faults, *(parse_fault(text) for text in texts)]
    if preempt_every_s is not None:
        faults.append(Fault("trainer", "preempt", preempt_grace_s, every_s=preempt_every_s, is_random=True, times=0))
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


def parse_fault(text: str) -> Fault:
    """One line of words; UserError says which word is wrong."""
    words = [word for word in text.replace(",", " ").lower().split() if word not in _SILENT]
    if len(words) < 2:
        raise UserError(f"fault {text!r}: expected 'ACTION TARGET [WHEN]'; {_EXAMPLE}")
    fields: dict[str, Any] = {"action": _ALIASES.get(words[0], words[0]), "target": _ALIASES.get(words[1], words[1])}
    if fields["action"] == "corrupt" and fields["target"] == "checkpoint":
        fields["target"] = "logdir"
    _check_target(fields["action"], fields["target"], f"fault {text!r}: ")
    _read_clauses(words[2:], fields, text)
    return _make(fields, f"fault {text!r}")


def _read_clauses(words: list[str], fields: dict[str, Any], text: str) -> None:
    """`with 3`, `for 5s`, `at step 50`, … into `fields`, by the keys of the file."""
    rest = " ".join(words)
    while rest:
        for pattern, keys in _CLAUSES:
            match = re.match(pattern + r"(?:\s+|$)", rest)
            if match:
                fields.update(zip(keys, match.groups(), strict=False) if match.groups() else ((keys[0], keys[1]),))
                rest = rest[match.end() :]
                break
        else:
            raise UserError(f"fault {text!r}: cannot read {rest!r}; {_EXAMPLE}")
    if "random_every" in fields:
        fields["every"], fields["random"] = fields.pop("random_every"), True


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
    (r"once", ("times", 1)),
    (r"always", ("times", 0)),
    (r"(\d+)(?=\s|$)", ("code",)),
)


def parse_plan(text: str, name: str) -> Plan:
    """A TOML file's text; `name` is what errors call it."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name} is not TOML: {error}") from error
    _check_keys(content, ("seed", "fault"), f"{name}, line ", _Lines(text, -1))
    seed, tables = content.get("seed", 0), content.get("fault", [])
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UserError(f"{name}, line {_Lines(text, -1).of('seed')}: seed is a whole number, not {seed!r}")
    if isinstance(tables, dict):
        raise UserError(f"{name}, line {_Lines(text, -1).of_table('fault')}: write [[fault]], as there may be many")
    if not isinstance(tables, list) or not tables:
        raise UserError(f"{name}: has no [[fault]]; add one")
    return Plan(tuple(_parse_item(table, name, _Lines(text, number)) for number, table in enumerate(tables)), seed)


class _Lines:
    """Finds the line of a key in the `number`th [[fault]] of a file (-1: before the first)."""

    def __init__(self, text: str, number: int) -> None:
        self._lines = text.splitlines()
        heads = [at for at, line in enumerate(self._lines) if re.match(r"\s*\[\[\s*fault\s*\]\]", line)]
        if number < 0:
            self._start, self._end = 0, heads[0] if heads else len(self._lines)
        else:
            self._start = heads[number] if number < len(heads) else 0
            self._end = heads[number + 1] if number + 1 < len(heads) else len(self._lines)

    def of(self, key: str) -> int:
        """Counted from 1; the head of the table where the key is not found."""
        for at in range(self._start, self._end):
            if re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", self._lines[at]):
                return at + 1
        return self._start + 1

    def of_table(self, key: str) -> int:
        """Where `[key]` stands; 1 where it is written in another way."""
        found = (at for at, line in enumerate(self._lines) if re.match(rf"\s*\[\s*{re.escape(key)}\s*\]", line))
        return next(found, 0) + 1

    def with_text(self, words: str) -> int:
        """Where `words` stand; 1 where they are written in another way."""
        return next((at for at, line in enumerate(self._lines) if words in line), 0) + 1


def _parse_item(item: object, name: str, lines: _Lines) -> Fault:
    """A table, or the words alone: `fault = ["kill trainer at step 50"]`."""
    if isinstance(item, dict):
        return _parse_table(item, name, lines)
    try:
        return parse_fault(str(item))
    except UserError as error:
        raise UserError(f"{name}, line {lines.with_text(str(item))}: {error}") from error


def _parse_table(table: dict[str, Any], name: str, lines: _Lines) -> Fault:
    _check_keys(table, _KEYS, f"{name}, line ", lines)
    if "do" in table:
        if len(table) > 1:
            others = ", ".join(key for key in table if key != "do")
            raise UserError(f"{name}, line {lines.of('do')}: do describes the whole fault; remove {others}")
        try:
            return parse_fault(str(table["do"]))
        except UserError as error:
            raise UserError(f"{name}, line {lines.of('do')}: {error}") from error
    try:
        return _make(dict(table), "")
    except _WrongKey as error:
        raise UserError(f"{name}, line {lines.of(error.key)}: {error}") from error


def _check_keys(table: dict[str, Any], known: Iterable[str], where: str, lines: _Lines) -> None:
    for key in table:
        if key not in known:
            raise UserError(f"{where}{lines.of(key)}: there is no {key!r}; {_nearest(key, known)}")


def _nearest(word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"


class _WrongKey(UserError):
    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def _make(fields: dict[str, Any], where: str) -> Fault:
    """The fault that `fields` (by the keys of the file) say; _WrongKey names the one that is wrong."""
    prefix = f"{where}: " if where else ""
    action, target = str(fields.pop("action", "")), str(fields.pop("target", ""))
    _check_target(action, target, prefix)
    kind = ACTIONS[action]
    fault = Fault(target, cast(Action, action))
    fault = _with_argument(fault, kind.argument, fields, prefix)
    fault = _with_time(fault, fields, prefix)
    if fields:
        key = next(iter(fields))
        raise _WrongKey(key, f"{prefix}{action} does not take {key!r}")
    return fault


def _check_target(action: str, target: str, prefix: str) -> None:
    if action not in ACTIONS:
        raise _WrongKey("action", f"{prefix}there is no action {action!r}; {_nearest(action, ACTIONS)}")
    if kind_of_target(target) not in TARGETS:
        raise _WrongKey("target", f"{prefix}there is no target {target!r}; {_nearest(target, TARGETS)}")
    if kind_of_target(target) not in ACTIONS[action].targets:
        raise _WrongKey("target", f"{prefix}{action} is for {' or '.join(ACTIONS[action].targets)}, not for {target}")


_ARGUMENT_KEYS = {"code": "code", "seconds": "for", "grace": "grace", "how": "how"}
_GRACE_S = 30.0  # of a preemption that does not say: as most platforms


def _with_argument(fault: Fault, argument: str, fields: dict[str, Any], prefix: str) -> Fault:
    if not argument:
        return fault
    key = _ARGUMENT_KEYS[argument]
    if key not in fields:
        if argument == "grace":
            return msgspec.structs.replace(fault, number=_GRACE_S)
        raise _WrongKey("action", f"{prefix}{fault.action} needs {_NEEDED[argument]}")
    value = fields.pop(key)
    if argument == "how":
        if value not in HOWS:
            raise _WrongKey(key, f"{prefix}there is no way {value!r} to corrupt; {_nearest(str(value), HOWS)}")
        return msgspec.structs.replace(fault, how=value)
    if argument == "code":
        return msgspec.structs.replace(fault, number=float(_whole(value, key, prefix, 0, 255)))
    return msgspec.structs.replace(fault, number=_seconds(value, key, prefix))


_NEEDED = {
    "code": "an exit code: 'with 3', or code = 3",
    "seconds": "a time: 'for 5s', or for = \"5s\"",
    "how": "a way: 'by flip', 'by truncate' or 'by delete'",
}


def _with_time(fault: Fault, fields: dict[str, Any], prefix: str) -> Fault:
    given = [key for key in ("at_step", "after", "every") if key in fields]
    if len(given) != 1:
        what = "does not say when" if not given else f"has two times: {' and '.join(given)}"
        raise _WrongKey(given[0] if given else "action", f"{prefix}{what}; 'at step 50', 'after 20s' or 'every 30s'")
    value, times = fields.pop(given[0]), fields.pop("times", None)
    is_random = fields.pop("random", False)
    if not isinstance(is_random, bool):
        raise _WrongKey("random", f"{prefix}random is true or false, not {is_random!r}")
    if given[0] == "at_step":
        fault = msgspec.structs.replace(fault, at_step=_whole(value, "at_step", prefix, 0, 2**62))
    elif given[0] == "after":
        fault = msgspec.structs.replace(fault, after_s=_seconds(value, "after", prefix, zero=True))
    elif match := re.fullmatch(r"(\S+) steps?", str(value)):
        fault = msgspec.structs.replace(fault, every_steps=_whole(match[1], "every", prefix, 1, 2**62), times=0)
    else:
        fault = msgspec.structs.replace(fault, every_s=_seconds(value, "every", prefix), is_random=is_random, times=0)
        is_random = False
    if is_random:
        raise _WrongKey("random", f"{prefix}random goes with a time: 'at random every 30s'")
    if times is not None:
        fault = msgspec.structs.replace(fault, times=_whole(times, "times", prefix, 0, 10**9))
    return fault


def _whole(value: object, key: str, prefix: str, least: int, most: int) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if isinstance(value, bool) or not least <= number <= most:
        limits = f"from {least} to {most}" if most < 1000 else f"from {least} on"
        raise _WrongKey(key, f"{prefix}{key} is a whole number {limits}, not {value!r}")
    return number


def _seconds(value: object, key: str, prefix: str, zero: bool = False) -> float:
    try:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        seconds = float(cast(float, value)) if is_number else parse_duration(str(value))
    except ValueError as error:
        raise _WrongKey(key, f"{prefix}{key}: {error}") from None
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        raise _WrongKey(key, f"{prefix}{key} is a time above 0, not {value!r}")
    return seconds

"""`python -m procsv.services.checkpoint.tools.compare DIR DIR [RTOL]`: compare two runs' variables.

`procsv drill` runs it.  It compares the last variables of both runs.  It only reads, and prints
JSON.  Files with the same bytes hold the same variables.  If the bytes differ, TensorFlow's own
reader reads the newest checkpoint of each directory.  So slices, strings and old formats are
compared as a program would see them.
"""

from __future__ import annotations

import filecmp
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from procsv.base.encoding import encode_json
from procsv.base.location import literal_path
from procsv.base.plain_values import decode, is_same
from procsv.base.run.manifest import STATE_FILE
from procsv.services.checkpoint.format.bundle_reader import BadBundle, check_structure
from procsv.services.checkpoint.format.state_file import GarbledStateFile, read_state
from procsv.services.checkpoint.store.catalog import listed_paths

WORST_SHOWN_MAX = 20
PLACE_KEY = "procsv/place/.ATTRIBUTES/py_state"  # defined by procsv/training/keras/state.py
_RANKS = ("model", "optimizer", "seed", "metric", "History", "callback", "random", "position")
_ATTRIBUTE = "/.ATTRIBUTES/"


class Difference(msgspec.Struct, kw_only=True):
    """One variable, or other state of a fit, that differs between the two checkpoints."""

    name: str
    dtype: str
    shape: list[int]
    elements: int  # how many differ
    max_abs: float | None  # None: not numeric, or the types or shapes differ
    max_rel: float | None
    is_close: bool  # within the tolerance
    owner: str = ""  # in a fit: model, optimizer, seed, metric, History, callback, random, position


class Comparison(msgspec.Struct, kw_only=True):
    first: str  # prefix of the checkpoint
    second: str
    variables: int
    only_in_first: list[str] = []
    only_in_second: list[str] = []
    different: list[Difference] = []  # the worst first; in a fit, see `_of_fit`
    different_count: int = 0
    is_identical: bool = True
    is_close: bool = True  # identical, or every difference is within the tolerance


def compare(first: str, second: str, rtol: float) -> Comparison:
    """Compares the newest checkpoints of two directories.

    FileNotFoundError if one directory has none.
    """
    if (same := _same_files(first, second)) is not None:
        return same
    import tensorflow as tf

    try:
        prefixes = [_newest(Path(directory)) for directory in (first, second)]
    except GarbledStateFile as error:
        raise FileNotFoundError(str(error)) from error
    with literal_path(prefixes[0]) as one_path, literal_path(prefixes[1]) as other_path:
        one, other = tf.train.load_checkpoint(one_path), tf.train.load_checkpoint(other_path)
    names = [set(reader.get_variable_to_shape_map()) for reader in (one, other)]
    common = sorted(names[0] & names[1])
    is_fit = PLACE_KEY in names[0] & names[1]
    variables = [name for name in common if not (is_fit and name == PLACE_KEY)]
    found = [_difference(name, one.get_tensor(name), other.get_tensor(name), rtol) for name in variables]
    different = sorted((one for one in found if one is not None), key=_badness, reverse=True)
    if is_fit:
        different = _of_fit(different, FitPlaces(one.get_tensor(PLACE_KEY), other.get_tensor(PLACE_KEY)))
    alone = [sorted(names[0] - names[1]), sorted(names[1] - names[0])]
    return Comparison(
        first=prefixes[0],
        second=prefixes[1],
        variables=len(common),
        only_in_first=alone[0],
        only_in_second=alone[1],
        different=different[:WORST_SHOWN_MAX],
        different_count=len(different),
        is_identical=not different and not any(alone),
        is_close=all(one.is_close for one in different) and not any(alone),
    )


def _of_fit(different: list[Difference], places: FitPlaces) -> list[Difference]:
    """Gives the differing variables of two fits readable names, and adds other differing state.

    Sorts: outside the tolerance first, then by owner (model, optimizer, seeds, metrics, the rest),
    then as in the fit.
    """
    different = sorted(different, key=lambda one: places.order(one.name))
    named = [(places.name(one.name), one) for one in different]
    named += [(name, _lone_difference(name.name)) for name in places.differences()]
    named.sort(key=lambda pair: (pair[1].is_close, pair[0].rank))
    return [msgspec.structs.replace(one, name=name.name, owner=name.owner) for name, one in named]


def _lone_difference(name: str) -> Difference:
    return Difference(name=name, dtype="object", shape=[], elements=1, max_abs=None, max_rel=None, is_close=False)


def _same_files(first: str, second: str) -> Comparison | None:
    """Compares two checkpoints by their files.

    None if the files differ; TensorFlow must then read the tensors.
    """
    try:
        one, other = (check_structure(_newest(Path(directory))) for directory in (first, second))
        pairs = [(Path(f"{one.prefix}.index"), Path(f"{other.prefix}.index"))]
        pairs += [(one.data_file(shard), other.data_file(shard)) for shard in range(one.num_shards)]
        if not all(filecmp.cmp(*pair, shallow=False) for pair in pairs):
            return None
    except (OSError, BadBundle, GarbledStateFile):
        return None
    return Comparison(
        first=one.prefix,
        second=other.prefix,
        variables=sum(b"\0" not in key for key in one.entries),  # slices have keys of their own
    )


def _newest(directory: Path) -> str:
    """Returns the prefix in the directory's `checkpoint` file.

    FileNotFoundError if there is none.
    """
    state = read_state(directory / STATE_FILE)
    if state is None:
        raise FileNotFoundError(f"there is no checkpoint in {directory}")
    return listed_paths(state, directory)[0]


def _badness(one: Difference) -> tuple[bool, float]:
    return not one.is_close, one.max_rel if one.max_rel is not None else float("inf")


def _difference(name: str, first: Any, second: Any, rtol: float) -> Difference | None:
    a, b = np.asarray(first), np.asarray(second)
    if a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() and a.dtype != object:
        return None
    one = Difference(
        name=name,
        dtype=str(a.dtype),
        shape=list(a.shape),
        elements=max(a.size, b.size),
        max_abs=None,
        max_rel=None,
        is_close=False,
    )
    if a.dtype != b.dtype or a.shape != b.shape:
        return one
    if a.dtype == object or a.dtype.kind in "SUb":
        one.elements = int(np.sum(a != b))
        return one if one.elements else None
    with np.errstate(all="ignore"):
        kind = np.complex128 if a.dtype.kind == "c" else np.float64
        wide_a, wide_b = a.astype(kind), b.astype(kind)
        gap = np.abs(wide_a - wide_b)
        size = np.maximum(np.abs(wide_a), np.abs(wide_b))
        relative = np.where(gap == 0, 0.0, gap / size)
    same = (gap == 0) | (np.isnan(wide_a) & np.isnan(wide_b))
    one.elements = int(np.sum(~same))
    one.max_abs, one.max_rel = float(np.nanmax(gap, initial=0.0)), float(np.nanmax(relative, initial=0.0))
    one.is_close = bool(np.all(same | (relative <= rtol)))
    return one


# -- fits of Keras ---------------------------------------------------------------------------------------------
class Name(msgspec.Struct, frozen=True):
    """A readable name for a key of a checkpoint, and the owner of that state ("" if unknown)."""

    name: str
    owner: str

    @property
    def rank(self) -> int:
        return _RANKS.index(self.owner) if self.owner in _RANKS else len(_RANKS)


class FitPlaces:
    """What the checkpoints of two Keras fits hold in addition to the values of variables.

    That is other state, and the owner of each variable.
    """

    def __init__(self, first: bytes, second: bytes) -> None:
        self._first, self._second = decode(first), decode(second)
        self._names: dict[str, list[str]] = self._first.get("names") or {}
        self._order = {key: number for number, key in enumerate(self._names)}

    def name(self, key: str) -> Name:
        owner, name = self._names.get(key, ("", key.partition(_ATTRIBUTE)[0]))
        return Name(name, owner)

    def order(self, key: str) -> int:
        """Returns the position of a variable in the fit's order."""
        return self._order.get(key, len(self._order))

    def differences(self) -> list[Name]:
        """Returns the names of the parts of this state that differ."""
        found = dict.fromkeys(_compare(_parts(self._first), _parts(self._second)))
        return sorted(found, key=lambda name: (name.rank, name.name))


def _parts(place: dict[str, Any]) -> dict[Name, Any]:
    parts: dict[Name, Any] = {}
    for number, (kind, state) in enumerate(place["callbacks"]):
        plain = {key: saved[-1] for key, saved in state["kept"].items()} if _is_read(state) else state
        if kind == "History":
            parts[Name("History", "History")] = plain
            continue
        values = plain if isinstance(plain, dict) else {"state": plain}
        # Leave out values that depend on the clock, because they always differ.
        parts |= {
            Name(f"{kind} {number + 1}: {key}", "callback"): v for key, v in values.items() if "time" not in str(key)
        }
    parts |= {Name(f"{key} generator", "random"): value for key, value in place["random"].items()}
    position = ("fit", "epoch", "batch", "steps", "stop", "data", "evaluation")
    return parts | {Name(key, "position"): place[key] for key in position}


def _is_read(state: Any) -> bool:
    """Whether procsv has read this state from the callback's attributes.

    If not, the callback has supplied the state itself.
    """
    return isinstance(state, dict) and "kept" in state


def _compare(first: dict[Name, Any], second: dict[Name, Any]) -> Iterator[Name]:
    for name in (*first, *second):
        if name not in first or name not in second or not is_same(first[name], second[name]):
            yield name


def main(argv: list[str]) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    rtol = float(argv[2]) if len(argv) > 2 else 0.0
    try:
        found = compare(argv[0], argv[1], rtol)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(encode_json(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

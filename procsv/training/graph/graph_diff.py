"""Difference between a graph and a saved state: the tensors that keep a restore from working.

Called by restore.py.  Only looks; what a restore would have to guess is the user's to decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.ipc.shm.slot_index import TensorEntry
from procsv.training.graph.saver_ops import RestoreGraph, Unsupported, read_restore_graph, read_save_graph

tf1 = tf.compat.v1

NAMES_MAX = 10  # of each kind that are named; of the others the number


class KeysMissing(UserError, tf.errors.NotFoundError):
    """The saved state lacks tensors of the graph.  TensorFlow's error for it, and one that a new start cannot mend."""

    def __init__(self, text: str) -> None:
        tf.errors.NotFoundError.__init__(self, None, None, text)
        self.exit_code = exit_codes.GAVE_UP


class KeysDiffer(UserError, tf.errors.InvalidArgumentError):
    """The saved state has tensors of the graph in another shape or type.  As above."""

    def __init__(self, text: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, text)
        self.exit_code = exit_codes.GAVE_UP


@dataclass(frozen=True, slots=True)
class Kind:
    """What a tensor is; `shape` None: unknown, any will do."""

    dtype: str
    shape: tuple[int | None, ...] | None

    def fits(self, there: Kind) -> bool:
        """Whether `there`, as saved, can be put where this is wanted."""
        if self.dtype != there.dtype:
            return False
        if self.shape is None or there.shape is None:
            return True
        pairs = zip(self.shape, there.shape, strict=True) if len(self.shape) == len(there.shape) else ((0, 1),)
        return all(mine is None or mine == its for mine, its in pairs)

    def __str__(self) -> str:
        shape = "?" if self.shape is None else ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{self.dtype} [{shape}]"


Kinds = Mapping[tuple[str, str], Kind]  # by key and slice ("" where the whole is meant)


@dataclass(frozen=True, slots=True)
class Changes:
    """What is in a graph and not so in a saved state."""

    missing: list[str]
    differing: list[str]  # sentences
    unused: list[str]  # keys that are saved, and of which the graph knows nothing

    def __bool__(self) -> bool:
        return bool(self.missing or self.differing)

    def __str__(self) -> str:
        said = []
        if self.missing:
            said.append(f"it lacks {_named(self.missing)}, which the graph has")
        if self.differing:
            said.append(_named(self.differing, "; "))
        if self.unused:
            said.append(f"it has {_named(self.unused)}, which the graph has not")
        return "; ".join(said)


def _named(names: list[str], between: str = ", ") -> str:
    rest = len(names) - NAMES_MAX
    return between.join(sorted(names)[:NAMES_MAX]) + (f" and {rest} more" if rest > 0 else "")


def wanted_by(saver: Any, graph: Any) -> dict[tuple[str, str], Kind]:
    """What `saver` restores in `graph`; Unsupported where that cannot be read from its ops."""
    return kinds_of(read_restore_graph(saver, graph), saver, graph)


def kinds_of(restore: RestoreGraph, saver: Any, graph: Any) -> dict[tuple[str, str], Kind]:
    """The types of what is restored, and where the Saver insists on them the shapes of what is saved by the same keys."""
    shapes: dict[tuple[str, str], tuple[int | None, ...] | None] = {}
    if not getattr(saver, "_reshape", False):
        try:
            saved = read_save_graph(saver, graph)
        except Unsupported:  # it restores what it does not save: the shapes are not known
            saved = None
        for item in (item for shard in saved.shards for item in shard) if saved is not None else ():
            shape = item.tensor.shape
            shapes[item.key, item.slice] = None if shape.rank is None else tuple(shape.as_list())
    return {key: Kind(t.dtype.base_dtype.name, shapes.get(key)) for key, t in restore.outputs.items()}


def saved_in(entries: Iterable[TensorEntry]) -> dict[tuple[str, str], Kind]:
    """The tensors of a snapshot."""
    return {(e.key, e.slice): Kind(e.dtype, tuple(e.shape)) for e in entries}


def compare(wanted: Kinds, there: Kinds) -> Changes:
    missing = [key for key, spec in wanted if (key, spec) not in there]
    differing = [
        f"{key} is {kind} in the graph and {there[key, spec]} in it"
        for (key, spec), kind in wanted.items()
        if (key, spec) in there and not kind.fits(there[key, spec])
    ]
    wanted_keys = {key for key, _ in wanted}
    return Changes(missing, differing, [key for key, _ in there if key not in wanted_keys])


def changes_since(path: str, saver: Any, graph: Any) -> Changes:
    """How the graph differs from checkpoint `path`, partitioned variables taken as a whole."""
    reader = tf.train.load_checkpoint(path)
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    there = {(key, ""): Kind(dtypes[key].name, tuple(shape)) for key, shape in shapes.items()}
    whole = {}
    for (key, spec), kind in wanted_by(saver, graph).items():
        *size, _ = spec.split() if spec else [""]
        whole[key, ""] = Kind(kind.dtype, tuple(map(int, size))) if spec else kind
    return compare(whole, there)


def restore_checkpoint(saver: Any, session: Any, path: str) -> None:
    """saver.restore; KeysMissing or KeysDiffer names what has changed, where TensorFlow names one key or none.

    TensorFlow puts a value of another shape into a resource variable without a word: that is refused before.
    """
    changes = _look(path, saver, session.graph)
    if changes is not None and changes.differing:
        raise KeysMissing(_told(path, changes)) if changes.missing else KeysDiffer(_told(path, changes))
    try:
        saver.restore(session, path)
    except tf.errors.NotFoundError as error:  # keys that are missing may have been found by TensorFlow in its own ways
        if not changes:
            raise
        raise KeysMissing(_told(path, changes)) from error


def _look(path: str, saver: Any, graph: Any) -> Changes | None:
    """None where it cannot be known: TensorFlow's restore will say what is wrong."""
    if getattr(type(saver), "restore", None) is not tf1.train.Saver.restore:
        return None  # it has its own way to match names
    try:
        return changes_since(path, saver, graph)
    except (Unsupported, tf.errors.OpError, ValueError):
        return None


def _told(path: str, changes: Changes) -> str:
    mismatch = "a mismatch between the current graph and the graph from the checkpoint"
    what = "keys of the graph are missing from the checkpoint" if changes.missing else mismatch
    return (  # it begins with TensorFlow's words
        f"Restoring from checkpoint failed: {what}.  The graph has changed since {path} was made: {changes}.  Change it back, restore what fits with a "
        f"Saver of your own (Supervisor: saver=, init_fn=), or start anew in another logdir."
    )

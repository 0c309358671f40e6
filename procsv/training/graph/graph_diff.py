"""Difference between a graph and a saved state: the tensors that keep a restore from working.

Called by restore.py.  Only looks; what a restore would have to guess is the user's to decide.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
import tensorflow as tf

from procsv.training.graph.saver_ops import RestoreGraph, Unsupported, read_restore_graph, read_save_graph

NAMES_MAX = 10  # of each kind that are named; of the others the number


Specs = Mapping[tuple[str, str], Any]  # tf.TensorSpec by key and slice ("" where the whole is meant)


class Changes(msgspec.Struct, frozen=True):
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


def specs_of(restore: RestoreGraph, saver: Any, graph: Any) -> dict[tuple[str, str], Any]:
    """The types of what is restored, and where the Saver insists on them the shapes of what is saved by the same keys."""
    shapes: dict[tuple[str, str], Any] = {}
    if not getattr(saver, "_reshape", False):
        with contextlib.suppress(Unsupported):  # it restores what it does not save: the shapes are not known
            saved = read_save_graph(saver, graph)
            shapes = {(item.key, item.slice): item.tensor.shape for shard in saved.shards for item in shard}
    return {key: tf.TensorSpec(shapes.get(key), t.dtype.base_dtype) for key, t in restore.outputs.items()}


def compare(wanted: Specs, there: Specs) -> Changes:
    missing = [key for key, part in wanted if (key, part) not in there]
    differing = [
        f"{key} is {_shown(spec)} in the graph and {_shown(there[key, part])} in it"
        for (key, part), spec in wanted.items()
        if (key, part) in there and not spec.is_compatible_with(there[key, part])
    ]
    wanted_keys = {key for key, _ in wanted}
    return Changes(missing, differing, [key for key, _ in there if key not in wanted_keys])


def _shown(spec: Any) -> str:
    shape = "?" if spec.shape.rank is None else ", ".join("?" if n is None else str(n) for n in spec.shape.as_list())
    return f"{spec.dtype.name} [{shape}]"


def changes_since(path: str, saver: Any, graph: Any) -> Changes:
    """How the graph differs from checkpoint `path`, partitioned variables taken as a whole.

    Unsupported where what `saver` restores cannot be read from its ops.
    """
    reader = tf.train.load_checkpoint(path)
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    there = {(key, ""): tf.TensorSpec(shape, dtypes[key]) for key, shape in shapes.items()}
    whole = {}
    for (key, part), spec in specs_of(read_restore_graph(saver, graph), saver, graph).items():
        *size, _ = part.split() if part else [""]
        whole[key, ""] = tf.TensorSpec(tuple(map(int, size)), spec.dtype) if part else spec
    return compare(whole, there)

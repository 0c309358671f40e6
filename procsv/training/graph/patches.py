"""Patches: all changes that procsv makes to TensorFlow's own objects and modules.

Made by the modules that need the change; what is changed is handed in, so that nothing here imports TensorFlow.  What has to
be changed back is a Patch, with `apply` and `undo`; one around which somebody else has put a wrapper stays where it is:
`undo` then changes nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Self

_ABSENT: Any = object()
_HIDDEN = "_procsv_hidden"  # attribute of a graph: its HiddenOps
_OWN = ("procsv", "services", "ipc")


class Patch(ABC):
    """A change that holds from `apply` to `undo`, or for a `with` block.  Either does nothing when it is done already."""

    is_applied = False

    def apply(self) -> None:
        if not self.is_applied:
            self._change()
            self.is_applied = True

    def undo(self) -> None:
        if self.is_applied:
            self.is_applied = not self._change_back()

    def __enter__(self) -> Self:
        self.apply()
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    @abstractmethod
    def _change(self) -> None: ...

    @abstractmethod
    def _change_back(self) -> bool:
        """False if the change has to stay."""


class AttributePatch(Patch):
    """`owner.name` becomes what `make` gives for its value so far (None if there is none)."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._owner, self._name, self._make = owner, name, make
        self._old = self._new = _ABSENT

    def _change(self) -> None:
        self._old = _own(self._owner, self._name)
        self._new = self._make(getattr(self._owner, self._name, None))
        setattr(self._owner, self._name, self._new)

    def _change_back(self) -> bool:
        if _own(self._owner, self._name) is not self._new:
            return False
        if self._old is _ABSENT:
            delattr(self._owner, self._name)  # what its class has shows again
        else:
            setattr(self._owner, self._name, self._old)
        return True


def _own(owner: Any, name: str) -> Any:
    """An attribute of `owner`, unless it is a method of its class.  A tf.Graph has no `vars`."""
    value = getattr(owner, name, _ABSENT)
    return _ABSENT if getattr(value, "__self__", None) is owner else value


class ItemPatch(Patch):
    """`mapping[key]` becomes `new`."""

    def __init__(self, mapping: MutableMapping[Any, Any], key: Any, new: Any) -> None:
        self._mapping, self._key, self._new, self._old = mapping, key, new, _ABSENT

    def _change(self) -> None:
        self._old = self._mapping.get(self._key, _ABSENT)
        self._mapping[self._key] = self._new

    def _change_back(self) -> bool:
        if self._mapping.get(self._key, _ABSENT) is self._new:
            del self._mapping[self._key]
        if self._old is not _ABSENT:
            self._mapping[self._key] = self._old
        return True


@contextlib.contextmanager
def empty_meanwhile(thing: Any, *lists: str) -> Iterator[None]:
    """`thing`'s attributes of these names are empty lists inside the block, and afterwards what they were."""
    before = {name: getattr(thing, name) for name in lists}
    for name in lists:
        setattr(thing, name, [])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)


def change_type(thing: Any, kind: type[Any]) -> None:
    """`thing` is from here on an instance of `kind`, a class that extends its own."""
    thing.__class__ = kind


def move_paths(things: Iterable[Any], names: Sequence[str], old: str, new: str) -> None:
    """Has `things` use the directory `new` wherever one of their attributes `names` is `old`, or a path in that."""
    for thing, name in itertools.product(things, names):
        path = getattr(thing, name, None)
        if path and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(old)):
            setattr(thing, name, os.path.normpath(os.path.join(new, os.path.relpath(path, old))))


def set_last_step(hook: Any, step: int) -> None:
    """A StopAtStepHook that has begun asks for the stop at `step`."""
    hook._last_step = step


@contextlib.contextmanager
def growing_graph(graph: Any) -> Iterator[None]:
    """A finalized graph can be added to inside the block."""
    was_finalized = graph.finalized
    if was_finalized:
        graph._unsafe_unfinalize()
    try:
        yield
    finally:
        if was_finalized:
            graph.finalize()


class HiddenOps:
    """Ops of a graph that are neither in its lists nor in what is written of it; they can be run, and found by name.

    What the program, its checkpoints and its event files see of the graph is what TensorFlow's Supervisor would have left.
    """

    def __init__(self, graph: Any) -> None:
        self.names: set[str] = set()
        AttributePatch(graph, "_as_graph_def", self._show_graph_def).apply()
        AttributePatch(graph, "get_operations", self._show_operations).apply()
        AttributePatch(graph, _HIDDEN, lambda _: self).apply()

    def _show_graph_def(self, as_graph_def: Any) -> Any:
        def shown(*args: Any, **kwargs: Any) -> Any:
            graph_def, version = as_graph_def(*args, **kwargs)
            self._leave_out(graph_def.node)
            return graph_def, version

        return shown

    def _show_operations(self, get_operations: Any) -> Any:
        return lambda: [op for op in get_operations() if op.name not in self.names]

    def _leave_out(self, nodes: Any) -> None:
        """Deletes the hidden ones of `nodes`; from the back, where they are: the graph was complete before."""
        left, at = len(self.names), len(nodes) - 1
        while left and at >= 0:
            if nodes[at].name in self.names:
                del nodes[at]
                left -= 1
            at -= 1


@contextlib.contextmanager
def hiding_ops(graph: Any) -> Iterator[None]:
    """Hides the ops that are added to `graph` (a tf.Graph, not finalized) inside the block, as long as it lives."""
    hidden: HiddenOps = getattr(graph, _HIDDEN, None) or HiddenOps(graph)
    before = {op.name for op in graph.get_operations()}
    try:
        yield
    finally:
        hidden.names.update({op.name for op in graph.get_operations()} - before)


class ClassPatch(Patch):
    """Classes and functions of TensorFlow's are other ones wherever they can be found by name.

    That is in the module that defines each, in TensorFlow's public names, and in modules that have imported it before.
    Objects that exist already, and classes that are derived already, keep what they have.
    """

    def __init__(self, replaced: Sequence[tuple[str, Any, Any]], public: Sequence[Any]) -> None:
        """`replaced`: name, theirs and ours of each.  `public`: the modules of TensorFlow's public names, which load them late."""
        self._replaced, self._public = replaced, public

    def _change(self) -> None:
        self._replace([(name, theirs, theirs, ours) for name, theirs, ours in self._replaced])

    def _change_back(self) -> bool:
        # In all that has been imported meanwhile, too.
        self._replace([(name, theirs, ours, theirs) for name, theirs, ours in self._replaced])
        return True

    def _replace(self, changes: Sequence[tuple[str, Any, Any, Any]]) -> None:
        # The modules that define them first: whatever is imported from those from now on gets the new ones.
        for name, theirs, _, new in changes:
            setattr(sys.modules[theirs.__module__], name, new)
        new_of = {id(old): (old, new) for _, _, old, new in changes}
        for module_name, module in list(sys.modules.items()):
            if module_name.split(".")[0] in _OWN or not isinstance(module, ModuleType):
                continue
            # One look at some 150,000 values: by identity, as some of them have an == of their own.
            if new_of.keys().isdisjoint(map(id, list(vars(module).values()))):
                continue
            for attribute, value in list(vars(module).items()):
                old, new = new_of.get(id(value), (None, None))
                if value is old and old is not None:
                    setattr(module, attribute, new)
        for name, _, old, new in changes:
            for api in self._public:
                if not name.startswith("_") and getattr(api, name, None) is old:
                    setattr(api, name, new)

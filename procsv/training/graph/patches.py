"""Change TensorFlow's own objects and modules, and undo the changes.

The caller passes in the object to change, so that this module does not import TensorFlow. A change
that can be undone is a Patch with `apply` and `undo`. If other code has wrapped a patched attribute
in the meantime, `undo` leaves the patch in place.
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
    """A change that holds from `apply` to `undo`, or during a `with` block.

    Applying or undoing twice does nothing.
    """

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
        """Undo the change. Return False if it has to stay."""


class AttributePatch(Patch):
    """Sets attribute `name` of `owner` to `make(old)`. `old` is the previous value, or None."""

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
            delattr(self._owner, self._name)  # the attribute of the class shows again
        else:
            setattr(self._owner, self._name, self._old)
        return True


def _own(owner: Any, name: str) -> Any:
    """Return attribute `name` of `owner`; _ABSENT if it is missing or a method of the class.

    `vars` would show whether the attribute is the instance's, but a tf.Graph does not support it.
    """
    value = getattr(owner, name, _ABSENT)
    return _ABSENT if getattr(value, "__self__", None) is owner else value


class ItemPatch(Patch):
    """Sets `mapping[key]` to `new`."""

    def __init__(self, mapping: MutableMapping[Any, Any], key: Any, new: Any) -> None:
        self._mapping, self._key, self._new, self._old = mapping, key, new, _ABSENT

    def _change(self) -> None:
        self._old = self._mapping.get(self._key, _ABSENT)
        self._mapping[self._key] = self._new

    def _change_back(self) -> bool:
        current = self._mapping.get(self._key, _ABSENT)
        if current is self._new:
            del self._mapping[self._key]
        elif current is not _ABSENT:
            return True  # other code has put a value of its own there
        if self._old is not _ABSENT:
            self._mapping[self._key] = self._old
        return True


@contextlib.contextmanager
def empty_meanwhile(thing: Any, *lists: str) -> Iterator[None]:
    """Empty the named list attributes of `thing` inside the block, and restore them after it."""
    before = {name: getattr(thing, name) for name in lists}
    for name in lists:
        setattr(thing, name, [])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)


def change_type(thing: Any, kind: type[Any]) -> None:
    """Make `thing` an instance of `kind`, a subclass of its present class."""
    thing.__class__ = kind


def move_paths(things: Iterable[Any], names: Sequence[str], old: str, new: str) -> None:
    """Replace directory `old` by `new` in the paths that `things` have in attributes `names`.

    No file is moved, and paths outside `old` stay the same.
    """
    for thing, name in itertools.product(things, names):
        path = getattr(thing, name, None)
        if path and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(old)):
            setattr(thing, name, os.path.normpath(os.path.join(new, os.path.relpath(path, old))))


def set_last_step(hook: Any, step: int) -> None:
    """Have a StopAtStepHook that has begun stop at `step`."""
    hook._last_step = step


@contextlib.contextmanager
def growing_graph(graph: Any) -> Iterator[None]:
    """Allow additions to a finalized graph inside the block."""
    was_finalized = graph.finalized
    if was_finalized:
        graph._unsafe_unfinalize()
    try:
        yield
    finally:
        if was_finalized:
            graph.finalize()


class HiddenOps:
    """Hides ops of a graph from its list of operations and from its GraphDef.

    The ops can still be run, and found by name. But the program, its checkpoints and its event
    files see the graph as TensorFlow's Supervisor would have left it.
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
        """Delete the hidden nodes.

        Search from the end: the graph was complete when the hidden ops were added.
        """
        left, at = len(self.names), len(nodes) - 1
        while left and at >= 0:
            if nodes[at].name in self.names:
                del nodes[at]
                left -= 1
            at -= 1


@contextlib.contextmanager
def hiding_ops(graph: Any) -> Iterator[None]:
    """Hide the ops that the block adds to `graph`, for the lifetime of the graph.

    `graph` is a tf.Graph that is not finalized.
    """
    hidden: HiddenOps = getattr(graph, _HIDDEN, None) or HiddenOps(graph)
    before = {op.name for op in graph.get_operations()}
    try:
        yield
    finally:
        hidden.names.update({op.name for op in graph.get_operations()} - before)


class ClassPatch(Patch):
    """Replaces classes and functions of TensorFlow wherever they can be found by name.

    It sets the new object in the module that defines the old one, among TensorFlow's public names,
    and in every module that has imported the old one. Existing instances and subclasses are not
    changed.
    """

    def __init__(self, replaced: Sequence[tuple[str, Any, Any]], public: Sequence[Any]) -> None:
        """Prepare the patch.

        Each item of `replaced` is a name, TensorFlow's object of this name, and ours. `public`
        lists the modules with TensorFlow's public names. They load a name when it is first used.
        """
        self._replaced, self._public = replaced, public

    def _change(self) -> None:
        self._replace([(name, theirs, theirs, ours) for name, theirs, ours in self._replaced])

    def _change_back(self) -> bool:
        # This also reaches modules that were imported while the patch was in place.
        self._replace([(name, theirs, ours, theirs) for name, theirs, ours in self._replaced])
        return True

    def _replace(self, changes: Sequence[tuple[str, Any, Any, Any]]) -> None:
        # Start with the defining modules: later imports from them get the new objects.
        for name, theirs, _, new in changes:
            setattr(sys.modules[theirs.__module__], name, new)
        new_of = {id(old): (old, new) for _, _, old, new in changes}
        # `copy()` is one step. During `list(sys.modules.items())`, another thread may import something.
        for module_name, module in sys.modules.copy().items():
            if module_name.split(".")[0] in _OWN or not isinstance(module, ModuleType):
                continue
            # All modules have some 150,000 values. They are compared by identity, because some have an == of their own.
            if new_of.keys().isdisjoint(map(id, vars(module).copy().values())):
                continue
            for attribute, value in vars(module).copy().items():
                old, new = new_of.get(id(value), (None, None))
                if value is old and old is not None:
                    setattr(module, attribute, new)
        for name, _, old, new in changes:
            for api in self._public:
                if not name.startswith("_") and getattr(api, name, None) is old:
                    setattr(api, name, new)

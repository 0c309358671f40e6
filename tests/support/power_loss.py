"""Derive what a disk may hold after a kill or a power loss from a recorded series of disk calls.

`Recording` replaces the calls of procsv.base.system.disk below one directory, passes them on, and
lists them. `aftermaths` returns what the disk may hold after each number of calls. A kill leaves
everything. A power loss may lose any part that no fsync has made certain, in the worst ways that
filesystems know:

* a name (new, moved, gone) is certain once its directory is synced. Before that it may or may not be there, independently of other names and long before its data. A rename between two directories is certain once the target directory is synced, and is never half done;
* a file's contents are certain once the file is synced. Before that they may be the contents at the last sync, the first half, zeros, or complete.

A disk in memory maps paths, relative to the directory, to contents; None stands for a directory.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from procsv.base.system import disk

Tree = tuple[tuple[str, bytes | None], ...]  # sorted by path
ALL_SUBSETS_MAX = 4  # uncertain names; with more, only some combinations are tried
RANDOM_SUBSETS = 4


@dataclass(frozen=True, slots=True)
class Op:
    """One disk call. `node` is its file; `names` are its changes: (directory, name) -> node or gone."""

    what: str
    path: str = ""
    node: int = -1
    data: bytes = b""
    size: int = 0  # after a truncation
    names: tuple[tuple[int, str, int | None], ...] = ()
    synced_by: int = -1  # the directory whose fsync makes the names certain
    note: Any = None  # on a mark


@dataclass(slots=True)
class Recording:
    """Replaces the disk calls. Calls outside of `top` pass unrecorded."""

    top: Path
    ops: list[Op] = field(default_factory=list)
    kill_at: int = -1  # the last call, counted from 1: half done if it writes
    fail_from: int = -1  # calls from this number on fail
    fail_count: int = 10**9  # how many fail
    error: int = 0  # with this errno
    calls: int = 0
    is_dead: bool = False
    unseen: list[str] = field(default_factory=list)  # changes that bypassed the disk module
    _real: dict[str, Callable[..., Any]] = field(default_factory=dict)
    _nodes: dict[tuple[int, str], int] = field(default_factory=dict)
    _contents: dict[int, bytearray] = field(default_factory=dict)
    _fds: dict[int, int] = field(default_factory=dict)
    _next: int = 1
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _inside: threading.local = field(default_factory=threading.local)
    start: Tree = ()

    # -- start and end ------------------------------------------------------------------------------------------
    def __enter__(self) -> Recording:
        self.start = read_tree(self.top)
        for path, data in self.start:
            self._adopt(path, data)
        for name in disk.CALLS:
            self._real[name] = getattr(disk, name)
            setattr(disk, name, lambda *a, _name=name, **k: self._call(_name, a, k))
        _watch(self)
        return self

    def __exit__(self, *_: object) -> None:
        _watch(None)
        for name, call in self._real.items():
            setattr(disk, name, call)

    def mark(self, note: Any) -> None:
        """Note that something was acknowledged at this point."""
        self.ops.append(Op("mark", note=note))

    # -- one call -----------------------------------------------------------------------------------------------
    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._lock:  # the order of two threads' calls is the order in the list
            if self.is_dead:
                raise Killed
            if not self._is_ours(name, args):
                return self._real[name](*args, **kwargs)
            self.calls += 1
            if self.fail_from <= self.calls < self.fail_from + self.fail_count and self.fail_from > 0:
                raise OSError(self.error, os.strerror(self.error), str(args[0]))
            if self.calls == self.kill_at:
                self.is_dead = True
                if name == "write":
                    disk.set_direct(args[0], False)  # half of it may not be a whole page
                    self._do(name, (args[0], bytes(args[1])[: len(args[1]) // 2]), kwargs)
                raise Killed
            return self._do(name, args, kwargs)

    def _is_ours(self, name: str, args: tuple[Any, ...]) -> bool:
        if name in ("write", "fsync"):
            return args[0] in self._fds
        target = args[1] if name in ("rename", "link") else args[0]
        return Path(target).is_relative_to(self.top)

    def _do(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._inside.gate = True
        try:
            result = self._real[name](*args, **kwargs)
        finally:
            self._inside.gate = False
        getattr(self, f"_on_{name}")(result, *args, **kwargs)
        return result

    def _place(self, path: Path) -> tuple[int, str, str]:
        """Return the directory, name and relative path."""
        relative = path.relative_to(self.top)
        return self._node(str(relative.parent)), relative.name, str(relative)

    def _node(self, relative: str) -> int:
        node = 0
        for part in Path(relative).parts:
            node = self._nodes[node, part]
        return node

    def _adopt(self, relative: str, data: bytes | None) -> int:
        """Register a file or directory that is already on the disk."""
        node, self._next = self._next, self._next + 1
        self._nodes[self._node(str(Path(relative).parent)), Path(relative).name] = node
        if data is not None:
            self._contents[node] = bytearray(data)
        return node

    def _name(self, what: str, path: Path, node: int | None) -> None:
        directory, name, relative = self._place(path)
        if node is None:
            gone = self._nodes.pop((directory, name))
            self.ops.append(Op(what, relative, gone, names=((directory, name, None),), synced_by=directory))
        else:
            self._nodes[directory, name] = node
            self.ops.append(Op(what, relative, node, names=((directory, name, node),), synced_by=directory))

    def _on_create(self, fd: int, path: Path, mode: int = 0, *, replace: bool = False) -> None:
        directory, name, relative = self._place(path)
        node = self._nodes.get((directory, name))
        if node is None:
            node, self._next = self._next, self._next + 1
            self._name("create", path, node)
        else:
            self.ops.append(Op("truncate", relative, node))
        self._contents[node] = bytearray()
        self._fds[fd] = node

    def _on_write(self, count: int, fd: int, data: bytes | memoryview) -> None:
        self._contents[self._fds[fd]] += bytes(data)[:count]
        self.ops.append(Op("write", node=self._fds[fd], data=bytes(data)[:count]))

    def _on_fsync(self, _: None, fd: int) -> None:
        self.ops.append(Op("fsync", node=self._fds[fd]))

    def _on_fsync_path(self, _: None, path: Path) -> None:
        relative = str(path.relative_to(self.top))
        self.ops.append(Op("fsync", relative, self._node(relative)))

    def _on_rename(self, _: None, source: Path, target: Path) -> None:
        (old, name, _old), (new, to, relative) = self._place(source), self._place(target)
        node = self._nodes[old, name]
        if self._nodes.get((new, to)) == node:
            return  # two names of one file: the system keeps both
        del self._nodes[old, name]
        self._nodes[new, to] = node
        names = ((old, name, None), (new, to, node))
        self.ops.append(Op("rename", relative, node, names=names, synced_by=new))

    def _on_link(self, _: None, source: Path, target: Path) -> None:
        if source.is_relative_to(self.top):
            self._name("link", target, self._node(str(source.relative_to(self.top))))
        else:  # a file from elsewhere: assume that nothing of it is synced
            node, self._next = self._next, self._next + 1
            self._name("create", target, node)
            data = target.read_bytes()
            self._contents[node] = bytearray(data)
            self.ops.append(Op("write", node=node, data=data))

    def _on_unlink(self, _: None, path: Path) -> None:
        self._name("unlink", path, None)

    _on_rmdir = _on_unlink

    def _on_mkdir(self, _: None, path: Path) -> None:
        node, self._next = self._next, self._next + 1
        self._name("mkdir", path, node)

    def _on_truncate(self, _: None, path: Path, size: int) -> None:
        node = self._node(str(path.relative_to(self.top)))
        del self._contents[node][size:]
        self.ops.append(Op("truncate", node=node, size=size))

    # -- changes that bypass the disk module -------------------------------------------------------------------------
    def saw(self, event: str, args: tuple[Any, ...]) -> None:
        if getattr(self._inside, "gate", False):
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            return
        path = args[1] if event in ("os.rename", "os.link") else args[0]
        if isinstance(path, (str, bytes, os.PathLike)) and Path(os.fsdecode(path)).is_relative_to(self.top):
            self.unseen.append(f"{event} {os.fsdecode(path)}")


class Killed(BaseException):
    """The process is dead from here on."""


_CHANGES = {"open", "os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_watching: Recording | None = None
_is_hooked = False


def _watch(recording: Recording | None) -> None:
    global _watching, _is_hooked
    _watching = recording
    if not _is_hooked:  # an audit hook cannot be removed
        sys.addaudithook(lambda event, args: _watching.saw(event, args) if _watching and event in _CHANGES else None)
        _is_hooked = True


# -- trees ------------------------------------------------------------------------------------------------------
def read_tree(top: Path) -> Tree:
    return tuple(sorted(_entries(str(top), "")))


def _entries(directory: str, below: str) -> Iterator[tuple[str, bytes | None]]:
    """List `directory`, with paths relative to `below`. Thousands of trees are read: plain strings are cheapest."""
    with os.scandir(directory) as found:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                yield below + entry.name, None
                yield from _entries(entry.path, f"{below}{entry.name}/")
            else:
                yield below + entry.name, _read(entry.path)


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def write_tree(top: Path, tree: Tree) -> None:
    """Make the directory hold exactly that tree. What is already right stays."""
    wanted = dict(tree)
    for path, data in reversed(read_tree(top)):
        if path not in wanted or (wanted[path] is None) != (data is None):
            (top / path).rmdir() if data is None else (top / path).unlink()
        elif wanted[path] == data:
            del wanted[path]
    for path, data in wanted.items():
        if data is None:
            (top / path).mkdir()
        else:
            (top / path).write_bytes(data)


# -- after a power loss -------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Disk:
    """What is certain, and what is not yet."""

    names: dict[tuple[int, str], int] = field(default_factory=dict)
    now: dict[int, bytes] = field(default_factory=dict)  # contents, as the system shows them
    safe: dict[int, bytes] = field(default_factory=dict)  # as of the last fsync
    pending: list[Op] = field(default_factory=list)

    def do(self, op: Op) -> None:
        match op.what:
            case "write":
                self.now[op.node] = self.now.get(op.node, b"") + op.data
            case "truncate":
                self.now[op.node] = self.now[op.node][: op.size]
            case "fsync":
                if op.node in self.now:
                    self.safe[op.node] = self.now[op.node]
                self._make_certain(op.node)
            case "mark":
                pass
            case _:
                if op.what == "create":
                    self.now[op.node], self.safe[op.node] = b"", b""
                self.pending.append(op)

    def _make_certain(self, directory: int) -> None:
        """Apply the pending changes of names in a directory for good. Earlier changes of the same
        names cannot come back.
        """
        left: list[Op] = []
        for op in self.pending:
            if op.synced_by == directory:
                _apply(self.names, op)
                settled = {name[:2] for name in op.names}
                left = [replace(p, names=tuple(n for n in p.names if n[:2] not in settled)) for p in left]
            else:
                left.append(op)
        self.pending = [op for op in left if op.names]


def _apply(names: dict[tuple[int, str], int], op: Op) -> None:
    for directory, name, node in op.names:
        if node is None:
            if names.get((directory, name)) == op.node:  # otherwise another file has that name by now
                del names[directory, name]
        else:
            names[directory, name] = node


def aftermaths(start: Tree, ops: list[Op], *, power: bool = True) -> Iterator[tuple[int, bool, Tree]]:
    """Yield (number of calls made, whether it was a power loss, what the disk holds). Each tree
    comes once for each mark.
    """
    state = _Disk()
    for number, (path, data) in enumerate(start, 1):
        directory = 0
        for part in Path(path).parent.parts:
            directory = state.names[directory, part]
        state.names[directory, Path(path).name] = number
        if data is not None:
            state.now[number] = state.safe[number] = data
    seen: set[Tree] = set()
    for count in range(len(ops) + 1):
        if count:
            state.do(ops[count - 1])
            if ops[count - 1].what == "mark":
                seen.clear()
        found = [(False, _tree(_named(state.names, state.pending), state.now))]
        if power:
            found += [(True, tree) for tree in _after_power_loss(state)]
        for is_power_loss, tree in found:
            if tree not in seen:
                seen.add(tree)
                yield count, is_power_loss, tree


def _named(names: dict[tuple[int, str], int], ops: list[Op]) -> dict[tuple[int, str], int]:
    result = dict(names)
    for op in ops:
        _apply(result, op)
    return result


def _after_power_loss(state: _Disk) -> Iterator[Tree]:
    done: set[frozenset[tuple[tuple[int, str], int]]] = set()
    for chosen in _subsets(state.pending):
        names = _named(state.names, chosen)
        key = frozenset(names.items())
        if key in done:
            continue
        done.add(key)
        named = set(names.values())
        dirty = [n for n, data in state.now.items() if n in named and state.safe.get(n, b"") != data]
        for contents in _contents(state, dirty):
            yield _tree(names, contents)


def _subsets(ops: list[Op]) -> Iterator[list[Op]]:
    """Yield all subsets if they are few; otherwise the most harmful ones and a few at random."""
    count = len(ops)
    if count <= ALL_SUBSETS_MAX:
        for chosen in itertools.product((False, True), repeat=count):
            yield [op for op, is_in in zip(ops, chosen, strict=True) if is_in]
        return
    yield []
    yield ops
    for at in range(count):
        yield ops[:at]
        yield ops[at:]
        yield [ops[at]]
        yield ops[:at] + ops[at + 1 :]
    chance = random.Random(count)
    for _ in range(RANDOM_SUBSETS):
        yield [op for op in ops if chance.random() < 0.5]


def _contents(state: _Disk, dirty: list[int]) -> Iterator[dict[int, bytes]]:
    ways: list[Callable[[int], bytes]] = [
        lambda n: state.safe.get(n, b""),
        lambda n: state.now[n][: len(state.now[n]) // 2],
        lambda n: bytes(len(state.now[n])),
    ]
    yield state.now
    for way in ways:
        if dirty:
            yield state.now | {n: way(n) for n in dirty}
        if len(dirty) > 1:
            for node in dirty:
                yield state.now | {node: way(node)}


def _tree(names: dict[tuple[int, str], int], contents: dict[int, bytes]) -> Tree:
    """Return what can be reached from the top."""
    below: dict[int, list[tuple[str, int]]] = {}
    for (directory, name), node in names.items():
        below.setdefault(directory, []).append((name, node))
    found: list[tuple[str, bytes | None]] = []

    def walk(directory: int, path: str) -> None:
        for name, node in below.get(directory, []):
            found.append((path + name, contents.get(node)))
            if node not in contents:
                walk(node, path + name + "/")

    walk(0, "")
    return tuple(sorted(found, key=lambda item: item[0]))

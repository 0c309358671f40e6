"""Fork a process that has imported TensorFlow, if its imports allow a fork.

standby.py uses this.  Most imports start nothing that a fork would break, but some libraries do, so
the process is checked before each fork.  A fork has only the thread that called it; whatever other
threads held or were doing is lost.

Exit handlers and finalizers that imports register clean up shared things, such as a temporary
directory.  They belong to the process that did the imports, which runs them once, at its own exit.
Each fork drops them; handlers that its program registers run as usual.

At exit an interpreter tears down each module.  In a fork that copies, page by page, most memory
that it shares with its origin: a quarter of a second for TensorFlow, after all of the program's own
work, during which a failed trainer cannot be restarted.  So a fork skips the modules that it
inherited.  The program's own modules and those imported in the fork are torn down as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from procsv.training.process.imported import GENERATED, IMPORTED, spec_of

PID_BYTES = 16
TASKS, DESCRIPTORS = Path("/proc/self/task"), Path("/proc/self/fd")
ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel", "/dev/vfio")
# Packages whose exit handlers a fork keeps, because they touch nothing outside the process.
# Without them a fork's exit would lose output (logging), leave children (multiprocessing), skip the
# program's own finalizers (weakref), wait forever (zmq) or crash (h5py).
NEEDED = frozenset({"procsv", "logging", "multiprocessing", "weakref", "zmq", "h5py"})
ALWAYS = ("sys", "builtins", "__main__")  # always torn down; the first two in a special way


class Threads:
    """The threads that libraries have started in this process.

    The threads of OpenBLAS are harmless: it ends them before a fork and restarts them afterwards.
    NumPy and SciPy each bring an OpenBLAS.  Its threads are recognized by when they begin: while an
    extension module of NumPy or SciPy loads.  To observe that, this class is an import finder,
    which delegates to the other finders.
    """

    harmless = ("numpy", "scipy")

    def __init__(self) -> None:
        self._known = _tasks()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches for new threads during imports in the block."""
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in self.harmless:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and isinstance(spec.loader, ExtensionFileLoader):
            spec.loader = _Watched(spec.loader, self._known)  # type: ignore[assignment]
        return spec

    def others(self) -> int:
        """Number of present threads that might not survive a fork."""
        return len(_tasks() - self._known)


class _Watched:
    """A loader that notes threads that begin during its module's import, and then steps aside."""

    def __init__(self, loader: Loader, known: set[str]) -> None:
        self._loader, self._known = loader, known

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        before = _tasks()
        module = self._loader.create_module(spec)
        self._known |= _tasks() - before
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None, "it was found by it"
        module.__spec__.loader = module.__loader__ = self._loader
        before = _tasks()
        self._loader.exec_module(module)
        self._known |= _tasks() - before


def _tasks() -> set[str]:
    return {task.name for task in TASKS.iterdir()}


def why_no_fork(threads: Threads) -> str:
    """What a fork of this process would break, or ""."""
    if threading.active_count() > 1:
        names = sorted(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        return f"importing the program's modules starts the thread {names[0]}"
    if count := threads.others():
        return f"importing the program's modules starts {count} native thread{'s' * (count > 1)}"
    if device := next((path for path in _open_files() if path.startswith(ACCELERATORS)), ""):
        return f"importing the program's modules opens {device}"
    if _has_children():
        return "importing the program's modules starts processes"
    return ""


def _open_files() -> list[str]:
    found = []
    for entry in DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed
            found.append(str(entry.readlink()))
    return found


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class ImportedFiles:
    """The files of the modules imported so far.  If one changes, a fork would run its old code."""

    def __init__(self, since_ns: int) -> None:
        """`since_ns`: when the imports began, in Unix time; files written later are suspect."""
        self._since_ns = since_ns
        found = {origin: _identity_of(origin) for origin in _origins()}
        self._files = {origin: file for origin, file in found.items() if file is not None}  # None: in an archive

    def changed(self) -> str:
        """Returns a file that has changed or disappeared, or ""."""
        changed = (
            path for path, file in self._files.items() if file.mtime_ns > self._since_ns or _identity_of(path) != file
        )
        return next(changed, "")


class _File(NamedTuple):
    device: int
    inode: int
    size: int
    mtime_ns: int


def _identity_of(path: str) -> _File | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return _File(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _origins() -> Iterator[str]:
    for name, module in sys.modules.copy().items():  # a thread of the program may import
        if name.startswith(GENERATED):  # TensorFlow writes and imports them as it traces; nothing else does
            continue
        if (spec := spec_of(module)) is not None and spec.has_location and spec.origin:
            yield spec.origin


class ExitHandlers:
    """Functions that imports register with atexit in this process."""

    def __init__(self) -> None:
        self._found: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Records registrations during imports in the block."""
        register = atexit.register

        def record(function: Callable[..., object], /, *args: Any, **kwargs: Any) -> Callable[..., object]:
            self._found.append((function, args, kwargs))
            return register(function, *args, **kwargs)

        atexit.register = record  # type: ignore[assignment]
        try:
            yield
        finally:
            atexit.register = register

    def drop(self) -> None:
        """Leaves inherited exit handlers and finalizers to the importing process; for forks.

        The objects that they refer to stay alive, because their own `__del__` would clean up, too.
        multiprocessing's finalizers recognize a fork by themselves.
        """
        registry = weakref.finalize._registry  # type: ignore[attr-defined]
        kept = [self._found, [info.weakref() for info in registry.values()]]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        for info in registry.values():
            info.atexit = False
        for function, _, _ in self._found:
            if (getattr(function, "__module__", None) or "").partition(".")[0] not in NEEDED:
                atexit.unregister(function)


def settle_memory() -> None:
    """Keeps a fork's garbage collector and exit from copying all present objects."""
    gc.collect()
    IMPORTED.note_modules()
    note_imported()
    gc.freeze()


def fork_away(begin: Callable[[], None], tell: Callable[[int], None] = lambda pid: None) -> int:
    """Forks a process that becomes a child of our parent, a subreaper.

    In the calling process it returns the fork's pid, once the fork has run `begin`.  In the fork it
    returns 0, once the calling process has called `tell` with that pid.  Raises ChildProcessError
    if the fork died before it had run `begin`.  If the calling process is killed in here, the fork
    may continue unknown to anyone.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    reader, writer = os.pipe()
    told, telling = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which have been checked
        between = os.fork()
        if not between and os.fork():
            os._exit(0)
    if not between:
        os.close(reader)
        os.close(telling)
        os.setsid()
        renew_randomness()
        begin()
        os.write(writer, str(os.getpid()).encode())
        os.close(writer)
        os.read(told, 1)
        os.close(told)
        return 0
    os.close(writer)
    os.close(told)
    try:
        pid = os.read(reader, PID_BYTES)
        os.waitpid(between, 0)  # from now on the fork is our parent's child
        if not pid:
            raise ChildProcessError("the fork ended before it was the trainer")
        tell(int(pid))
    finally:
        os.close(reader)
        os.close(telling)
    return int(pid)


def renew_randomness() -> None:
    """Reseeds NumPy; Python does so by itself, and TensorFlow seeds at its first use."""
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()


_inherited: dict[str, ModuleType] = {}
_noted_by = 0  # pid


def note_imported() -> None:
    """Notes the present modules as those that forks of this process inherit."""
    global _noted_by
    _noted_by = os.getpid()
    _inherited.clear()
    _inherited.update((name, module) for name, module in sys.modules.copy().items() if name not in ALWAYS)


# At the exit of a fork: takes the inherited modules out of `sys.modules`, so that nothing tears them down.
def _leave_alone() -> None:
    if os.getpid() == _noted_by or not _inherited:
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_inherited))  # keep the modules alive forever
    rest = {name: module for name, module in sys.modules.copy().items() if module is not _inherited.get(name)}
    sys.setswitchinterval(1000.0)  # seconds: no thread sees half of the modules
    sys.modules.clear()
    sys.modules.update(rest)


# Registered before most handlers, so it runs after them: they may still import modules.
atexit.register(_leave_alone)

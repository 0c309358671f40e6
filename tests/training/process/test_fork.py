"""Threads and children decide whether a process with imports may be forked, and the fork's parent
hears how it ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.naming import Naming
from tests.support.programs import DEADLINE_S, ROOT

IMPORTED = """
import subprocess, sys, threading
from procsv.training.process.fork import Threads, why_no_fork

threads = Threads()
with threads.watching():
    import zmq, numpy, scipy.special._ufuncs  # which brings an OpenBLAS of SciPy's own
assert threads not in sys.meta_path
module = scipy.special._ufuncs
assert type(module.__loader__).__name__ == type(module.__spec__.loader).__name__ == "ExtensionFileLoader"
numpy.ones((300, 300)) @ numpy.ones((300, 300))
"""

# Plays the watchdog: the subreaper and parent of the process that forks. Prints what it learns of
# both.
WATCHDOG = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
forking = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
said = forking.stdout.readline().strip()
print(said)
if said.isdigit():
    _, status = os.waitpid(int(said), 0)
    print(os.waitstatus_to_exitcode(status))
forking.communicate()
"""
FORKING = """
import os, sys
from procsv.training.process.fork import fork_away

def begin():
    {begin}

try:
    pid = fork_away(begin)
except ChildProcessError as error:
    print(error, flush=True)
    sys.exit()
if pid:
    print(pid, flush=True)
    sys.exit(7)
assert os.getsid(0) == os.getpid()
os._exit(42)
"""


def said_by(code: str, *args: str, **env: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}", **env}
    ended = subprocess.run(
        [sys.executable, "-c", code, *args], env=environment, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S
    )
    assert ended.returncode == 0
    return ended.stdout.splitlines()


@pytest.mark.parametrize(
    ("meanwhile", "why"),
    [
        ("", ""),
        (
            "threading.Thread(target=threading.Event().wait, name='ticker', daemon=True).start()",
            Naming("thread ticker"),
        ),
        ("socket = zmq.Context().socket(zmq.PUB)", Naming(" 2 ", "threads")),
        ("child = subprocess.Popen(['true'])", Naming("starts processes")),
    ],
    ids=["imports alone", "a thread of Python's", "threads of a library's", "a child"],
)
def test_threads_and_children_started_by_imports_forbid_a_fork_and_openblas_threads_do_not(
    meanwhile: str, why: str
) -> None:
    last = "import os; print(why_no_fork(threads), flush=True); os._exit(0)"
    assert said_by(f"{IMPORTED}\n{meanwhile}\n{last}") == [why]


def test_a_fork_becomes_the_child_of_the_subreaper_above_which_learns_how_it_ends() -> None:
    pid, code = said_by(WATCHDOG, FORKING.format(begin="pass"))
    assert pid.isdigit()
    assert code == "42"


def test_a_fork_that_dies_before_it_has_started_is_reported() -> None:
    assert said_by(WATCHDOG, FORKING.format(begin="os._exit(1)")) == [Naming("fork ended")]


def test_a_module_with_a_changed_or_missing_file_has_changed_and_one_in_an_archive_has_not(tmp_path: Path) -> None:
    for name in ("same", "other", "gone"):
        (tmp_path / f"{name}.py").write_text("")
        os.utime(tmp_path / f"{name}.py", (1.0, 1.0))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("zipped.py", "")
    code = """
import os, sys, time
from procsv.training.process.fork import ImportedFiles
import same, other, gone, zipped

since = time.time_ns()
files = ImportedFiles(since)
print(files.changed())
os.rename("gone.py", "gone.was")
print(files.changed())
os.rename("gone.was", "gone.py")
print(files.changed())
with open("other.new", "w"):
    pass
os.utime("other.new", (1, 1))
os.replace("other.new", "other.py")
print(files.changed())
os.utime("same.py")
print(ImportedFiles(since).changed())
"""
    paths = f"{ROOT}:{tmp_path}:{tmp_path}/all.zip"
    script = tmp_path / "script.py"
    script.write_text(f"import os; os.chdir({str(tmp_path)!r})\n{code}")
    said = said_by("import runpy, sys; runpy.run_path(sys.argv[1])", str(script), PYTHONPATH=paths)
    assert said == ["", f"{tmp_path}/gone.py", "", f"{tmp_path}/other.py", f"{tmp_path}/same.py"]

"""Run general process managers that restart the program under TensorFlow's Supervisor, as people
without procsv do.

Called by restart.py and runs.py. circus and supervisord are installed into a directory that
is removed with the benchmark. If that fails, their rows are left out and a note says so.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import venv
from pathlib import Path

INSTALL_S_MAX = 300.0
PACKAGES = {"circus": "circus", "supervisord": "supervisor"}
SHELL = "shell loop"


def install(folder: Path) -> dict[str, str]:
    """Install each manager into a virtual environment in `folder`; return why that failed by name
    ("" if it succeeded).
    """
    venv.create(folder, with_pip=True)
    found = {}
    for name, package in PACKAGES.items():
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", package, "setuptools<80"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False)
        found[name] = "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
    return found


def keep(name: str, argv: list[str], folder: Path, tools: Path | None) -> list[str]:
    """Return the command that runs `argv`, and restarts it whenever it ends, with its settings in
    `folder`.
    """
    command = shlex.join([sys.executable, *argv])
    if name == SHELL:
        return ["sh", "-c", f"while ! {command}; do :; done"]
    assert tools is not None
    settings = folder / f"{name}.ini"
    if name == "circus":
        settings.write_text(
            "[circus]\ncheck_delay = 1\n"
            f"endpoint = ipc://{folder}/c1\npubsub_endpoint = ipc://{folder}/c2\n"
            f"[watcher:train]\ncmd = {command}\ncopy_env = True\nmax_retry = -1\n"
        )
        return [str(tools / "bin" / "circusd"), str(settings)]
    settings.write_text(
        f"[supervisord]\nnodaemon = true\nuser = root\nlogfile = {folder}/supervisord.log\npidfile = {folder}/pid\n"
        f"[program:train]\ncommand = {command}\nautorestart = true\nstartsecs = 0\n".replace("%", "%%")
    )
    return [str(tools / "bin" / "supervisord"), "-c", str(settings)]

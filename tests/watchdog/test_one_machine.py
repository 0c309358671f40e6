"""The watchdog of a run on one machine loads nothing that only several machines need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.launched import settings_text

LAUNCH = Path(__file__).with_name("stand_ins") / "launch.py"
LOADED = """
import atexit, runpy, sys
atexit.register(lambda: print("loaded:", *sys.modules))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_run_on_one_machine_loads_no_module_for_several_machines(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("print('trained')")
    command = [sys.executable, "-c", LOADED, str(LAUNCH), str(tmp_path / "logdir"), settings_text(), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])

    assert done.returncode == 0, done.stderr
    loaded = done.stdout.rpartition("loaded:")[2].split()
    assert "procsv.watchdog.edge.event_loop" in loaded
    assert not [name for name in loaded if name.startswith("procsv.watchdog.machines")]
    assert "procsv.ipc.messaging.curve_transport" not in loaded

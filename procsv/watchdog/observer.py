"""`python -m procsv.watchdog.observer`: watch a program that procsv did not start.

The observer runs as the program's child. A Supervisor or a monitored session that is made without
`procsv launch` starts the observer. The observer imports everything and waits until the first
session begins. If none does, the observer ends when the program ends. It never ends the program,
and never restarts it.
"""

from __future__ import annotations

import os
import sys

from procsv.watchdog.host.warm_services import WarmServices


def main() -> None:
    modules, logdir = dict(pair.split("=") for pair in sys.argv[1].split(",")), sys.argv[2]
    program = os.getppid()
    warm = WarmServices(modules, logdir)  # first, so that their imports run in parallel with ours
    from procsv.base.system.output import leave
    from procsv.watchdog.host.observed_program import ObservedProgram
    from procsv.watchdog.main import run

    observed = ObservedProgram(program)
    start = observed.wait_for_start()
    leave(0 if start is None else run(start, observed=observed, warm=warm))


if __name__ == "__main__":
    main()

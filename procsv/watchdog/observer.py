"""`python -m procsv.watchdog.observer`: the watchdog of a program that procsv has not started, as that program's child.

Started by a Supervisor or a monitored session without `procsv launch`, when it is made; waits, with everything imported,
until the first session begins, and ends with the program if none does.  Never ends the program, and never starts it again.
"""

from __future__ import annotations

import os
import sys

from procsv.watchdog.host.observed.warm_services import WarmServices


def main() -> None:
    modules, logdir = dict(pair.split("=") for pair in sys.argv[1].split(",")), sys.argv[2]
    program = os.getppid()
    warm = WarmServices(modules, logdir)  # first: their imports go on beside ours
    from procsv.base.system.output import leave
    from procsv.watchdog.host.observed.observed_program import ObservedProgram
    from procsv.watchdog.main import run

    observed = ObservedProgram(program)
    start = observed.wait_for_start()
    leave(0 if start is None else run(start, observed=observed, warm=warm))


if __name__ == "__main__":
    main()

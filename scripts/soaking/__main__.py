"""A run of digits under trouble, for as long as one likes; then: did anything grow, was anything
lost?

    scripts/soak [--mixed] [--minutes 30] [--every 6] [--seed 1]
    scripts/soak --template [--forks 1000]
    scripts/soak --bystanders [--minutes 30]
    scripts/soak --group [--minutes 30]
    scripts/soak --keras [--kills 200] [--seed 1]

Every few seconds one process, chosen by the seed, is killed with SIGKILL: trainer, checkpoint
service, summary service, or (seldom) the watchdog, after which the same command is given again.
Looked at throughout: every row of docs/bounds.md, files and memory, and whether the watchdog's
descriptors grow.  At the end the run is stopped; it must exit 75, leave no process, socket or
shared memory, and have every acknowledged checkpoint that retention keeps.

With --mixed there is more than kills: processes are frozen; the run's directories are swept, and
its sockets and locks one by one; the disks of logdir and runtime directory are full, the logdir is
away or read-only for some seconds; the clock is set back; copies of the live logdir are launched
elsewhere.  No restart may go back behind a checkpoint that was on disk, and what was trained must
be, to the bit, what an undisturbed run trains.  Full disks need the right to mount, the clock needs
libfaketime: a fault that this machine cannot inject is reported and left out.

With --template, trainer after trainer is forked from one standby, trains a few steps in a session,
eagerly and with Keras under XLA, and is killed.  Each must train, and no other standby be made.

With --bystanders, six programs that are no training (a server, a sleep, a preprocessing, a crash, a
fork, a script that answers what is typed) run side by side, with limits of 5 s: none may be ended
for a hang.

With --group, one healthy run of several tasks: an idle parameter server, a slow evaluator, a slow
worker, a chief that stands still now and then.  None may be ended or started again.

With --keras, fits of some twenty kinds are killed at batches that the seed chooses.  Each must end
with the variables and the History, to the bit, of one that nobody disturbed.  Exit code 1 if
something was wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from scripts.soaking.bystanders import soak_by_bystanders
from scripts.soaking.group import soak_by_group
from scripts.soaking.keras_fits import soak_by_fits
from scripts.soaking.kills import soak_by_kills
from scripts.soaking.mixed import soak_by_mixed_trouble
from scripts.soaking.template import soak_by_forks


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mixed", action="store_true", help="all kinds of trouble, not only kills")
    parser.add_argument("--minutes", type=float, default=30, help="how long (default %(default)s)")
    parser.add_argument(
        "--every", type=float, default=6, help="seconds between troubles, on average (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of troubles and their times (default %(default)s)")
    parser.add_argument("--template", action="store_true", help="forks of one standby, and nothing else")
    parser.add_argument("--forks", type=int, default=1000, help="how many, with --template (default %(default)s)")
    parser.add_argument("--bystanders", action="store_true", help="programs that are no training, and nothing else")
    parser.add_argument("--group", action="store_true", help="a healthy run of several tasks, and nothing else")
    parser.add_argument("--keras", action="store_true", help="fits of Keras, and nothing else")
    parser.add_argument("--kills", type=int, default=200, help="how many, with --keras (default %(default)s)")
    args = parser.parse_args()
    soak = soak_by_mixed_trouble if args.mixed else soak_by_kills
    with tempfile.TemporaryDirectory(prefix="procsv-soak-") as directory:
        logdir = Path(directory) / "digits"
        if args.template:
            wrong = soak_by_forks(logdir, args.forks)
        elif args.bystanders:
            wrong = soak_by_bystanders(logdir, args.minutes)
        elif args.group:
            wrong = soak_by_group(logdir, args.minutes)
        elif args.keras:
            wrong = soak_by_fits(Path(directory), args.kills, args.seed)
        else:
            wrong = soak(logdir, args.minutes, args.every, args.seed)
    print("\n".join(wrong) or "nothing grew, nothing was lost, nothing is left")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

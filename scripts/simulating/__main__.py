"""Runs under random faults, in memory: watchdog, both services and a model trainer on a fake clock,
network and disk.

    scripts/simulate [--tasks | --machines [N]] [--seed N] [--runs N] [--minutes M] [--verbose]
    scripts/simulate --cost [--verbose]

`--seed N --verbose` replays one run and prints everything that happens in it. Otherwise it runs
consecutive seeds, from N on (by default from a random one), until there were `--runs` of them or
`--minutes` are over. `--tasks` simulates runs of several tasks, on parameter servers or in step.
`--machines` simulates such runs with one launch per task, each on a machine of its own (N of them
beside the coordinator's; by default up to 64), under cuts, freezes and losses. The invariants are
checked after every event. `--cost` instead measures what the members of such a run cost their
coordinator. A failing seed is printed with what was wrong; the exit code is 1 if there was one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable

from scripts.simulating.cost import show_cost
from tests.simulation.model.machines.run import simulate_machines
from tests.simulation.model.run import simulate

Simulate = Callable[[int], int]  # seed -> the number of events in its run

SEED_MAX = 2**31
SHOWN_MAX = 20  # failing seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seed", type=int, help="the first seed; a random one if not given")
    parser.add_argument("--runs", type=int, help="how many runs (1 with --seed, else 1000)")
    parser.add_argument("--minutes", type=float, help="how long, instead of --runs")
    parser.add_argument(
        "--tasks", action="store_true", help="runs of chief, workers, servers and evaluators, and gangs"
    )
    parser.add_argument(
        "--machines",
        type=int,
        nargs="?",
        const=0,
        metavar="N",
        help="runs with one launch a task, on machines of their own: N beside the coordinator's, some (up to 64) without a number",
    )
    parser.add_argument(
        "--cost",
        action="store_true",
        help="measure what members cost their coordinator, by their number; with --verbose where",
    )
    parser.add_argument("--verbose", action="store_true", help="print all that happens")
    options = parser.parse_args()
    if options.machines is not None and options.machines < 0:
        parser.error("--machines takes a number of machines, from 1 on")
    if options.cost:
        return show_cost(has_profile=options.verbose)
    first = random.randrange(SEED_MAX) if options.seed is None else options.seed
    runs = options.runs or (1 if options.seed is not None and not options.minutes else 1000)
    until_s = time.monotonic() + options.minutes * 60 if options.minutes else None
    return _run_all(first, runs, until_s, *_choose(options))


def _choose(options: argparse.Namespace) -> tuple[Simulate, str]:
    """Return the function that runs a seed, and the options that replay it."""
    trace = print if options.verbose else None
    if options.machines is not None:
        number = options.machines or None
        words = f"--machines {number or ''}".strip()
        return (lambda seed: simulate_machines(seed, number, trace).events), f"{words} "
    return (lambda seed: simulate(seed, trace, has_tasks=options.tasks).events), "--tasks " * options.tasks


def _run_all(first: int, runs: int, until_s: float | None, simulate_seed: Simulate, kind: str) -> int:
    begun_s, seed, events = time.monotonic(), first, 0
    failed: list[int] = []
    while (seed - first < runs) if until_s is None else (time.monotonic() < until_s):
        try:
            events += simulate_seed(seed)
        except BrokenPipeError:  # the reader of our output has closed it
            return 1
        except Exception as error:  # noqa: BLE001  any error in a run is a finding
            failed.append(seed)
            if len(failed) <= SHOWN_MAX:
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
        seed += 1
    done, seconds = seed - first, time.monotonic() - begun_s
    rate = f"{done / seconds * 60:.0f} a minute, {events / max(1, done - len(failed)):.0f} events each"
    print(f"{done} runs from seed {first}: {len(failed)} failed; {rate}")
    if failed:
        print(f"replay one with: scripts/simulate --seed {failed[0]} {kind}--verbose")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

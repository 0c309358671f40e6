"""Mutation tests of the code that decides: the cores, the commit, the catalogue, the slots, the
lease and the locks.

    scripts/mutate [--sample N] [--seed N] [--jobs N] [ROOM…]

Each mutant is the tree with one small change (`<` for `<=`, `and` for `or`, a number plus one),
with which a room's tests must fail. It prints the survivors, and how many mutants were killed.
scripts/mutating/equivalents.txt lists survivors whose change has no visible effect, with the
reason. The exit code is 1 if a room is below the bar of 90 %. `--sample` tries only that many of a
room's mutants, drawn by `--seed`, because all of them take hours.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.mutating.mutants import Mutant, find_mutants
from scripts.mutating.rooms import ROOMS, Room
from scripts.mutating.trial import MORE_S, MORE_TIME, Copy

ROOT = Path(__file__).parents[2]
EQUIVALENTS = Path(__file__).with_name("equivalents.txt")
KILLED_MIN = 0.9
PROGRESS_EVERY = 10  # mutants


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(ROOMS)}; all if none is given")
    parser.add_argument("--sample", type=int, help="try so many mutants of each room, not all")
    parser.add_argument("--seed", type=int, default=1, help="draws the sample (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (default: 1)")
    options = parser.parse_args()
    if unknown := set(options.rooms) - set(ROOMS):
        parser.error(f"no such room: {', '.join(sorted(unknown))}; there are {', '.join(ROOMS)}")
    with tempfile.TemporaryDirectory(prefix="procsv-mutants-") as place:
        copies = [Copy(ROOT, Path(place) / str(number)) for number in range(options.jobs)]
        shares = [_try_room(name, copies, options.sample, options.seed) for name in options.rooms or ROOMS]
    return 0 if min(shares) >= KILLED_MIN else 1


def _try_room(name: str, copies: list[Copy], sample: int | None, seed: int) -> float:
    """Return the share of mutants that were killed, among the ones that change anything."""
    room = ROOMS[name]
    mutants = list(itertools.chain.from_iterable(find_mutants(ROOT, path) for path in room.files(ROOT)))
    drawn = random.Random(seed).sample(mutants, min(sample or len(mutants), len(mutants)))
    baseline_s = copies[0].baseline_s(room)
    print(f"{name}: {len(drawn)} of {len(mutants)} mutants; the tests take {baseline_s:.0f} s", flush=True)
    killed, equivalent = _try_all(room, drawn, copies, baseline_s * MORE_TIME + MORE_S)
    share = killed / max(1, len(drawn) - equivalent)
    print(
        f"{name}: {killed} killed ({share:.0%}), {len(drawn) - killed - equivalent} survived, {equivalent} equivalent",
        flush=True,
    )
    return share


def _try_all(room: Room, mutants: list[Mutant], copies: list[Copy], timeout_s: float) -> tuple[int, int]:
    known, free = _equivalents(), queue.SimpleQueue[Copy]()
    for copy in copies:
        free.put(copy)

    def survivor(mutant: Mutant) -> tuple[str, str] | None:
        copy = free.get()
        try:
            with copy.broken(mutant) as lines:
                return lines if copy.passes(room, timeout_s) else None
        finally:
            free.put(copy)

    killed = equivalent = 0
    with ThreadPoolExecutor(len(copies)) as pool:
        for tried, (mutant, lines) in enumerate(zip(mutants, pool.map(survivor, mutants), strict=True), 1):
            if tried % PROGRESS_EVERY == 0:
                print(f"  {tried} tried", file=sys.stderr, flush=True)
            if lines is None:
                killed += 1
            elif (mutant.path.as_posix(), _code_of(lines[1])) in known:
                equivalent += 1
            else:
                print(
                    f"survived: {mutant.path}:{mutant.line} ({mutant.operator})\n  - {lines[0]}\n  + {lines[1]}",
                    flush=True,
                )
    return killed, equivalent


def _equivalents() -> set[tuple[str, str]]:
    """Return the path and the changed code of each mutant that is known to change nothing.

    The file has a block of three lines for each.
    """
    blocks = [block.splitlines() for block in EQUIVALENTS.read_text().split("\n\n") if not block.startswith("#")]
    return {(block[0].strip(), _code_of(block[1])) for block in blocks if len(block) >= 2}


def _code_of(line: str) -> str:
    """Return `line` without its trailing comment, which may be rewritten at any time."""
    return line.partition("  # ")[0].strip()


if __name__ == "__main__":
    sys.exit(main())

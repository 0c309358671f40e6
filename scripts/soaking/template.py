"""Fork many trainers from one standby: each trains a few steps in every way that TensorFlow has,
and is killed.
"""

from __future__ import annotations

from pathlib import Path

from scripts.soaking.kills import OPTIONS
from scripts.soaking.watch import find_remains
from tests.support.launched import launched

STEPS = 5
SHOWN_EVERY = 50


def soak_by_forks(logdir: Path, forks: int) -> list[str]:
    """Make that many forks; return what was wrong."""
    done = logdir.with_name("done")
    done.mkdir()
    target = ("scripts.soaking.template_program", str(done), str(forks), str(STEPS))
    scratch = logdir.with_name("tmp")  # for files that TensorFlow leaves when it is killed
    scratch.mkdir()
    with launched(logdir, *OPTIONS, *target, standby="warm", TMPDIR=str(scratch)) as run:
        for number in range(1, forks + 2):
            run.wait_for(f"trainer {number}", (done / str(number)).exists)
            if number % SHOWN_EVERY == 0:
                print(f"{number:5} trained", flush=True)
        code = run.wait_end()
    wrong = [f"exit code {code} at the end: {run.said()[-500:]}"] if code else []
    promoted = {entry["incarnation"]: entry["pid"] for entry in run.events("promoted")}
    standbys = {entry["pid"] for entry in run.events("spawned", "standby")}
    wrong += [
        f"trainer {number} was no fork" for number in range(2, forks + 2) if promoted.get(number) in {None, *standbys}
    ]
    if len(standbys) != 1:
        ends = [f"{entry['incarnation']}: {entry['evidence']}" for entry in run.events("exited", "standby")]
        wrong.append(f"{len(standbys)} standbys were made; they ended: {'; '.join(ends)}")
    died = {entry["signal"] or entry["code"] for entry in run.events("exited", "trainer")[:-1]}
    wrong += [f"they ended by {died}"] if died != {"SIGKILL"} else []
    return wrong + find_remains(logdir)

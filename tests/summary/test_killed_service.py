"""Each record is in the file once and in order, whatever happens to the summary service."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.summary.real_service import Run, Trainer, event, event_files, steps_in

pytestmark = pytest.mark.fault

MOMENTS = (
    "summary.mid_record=5*off->1*torn->kill",
    "summary.after_write=5*off->kill",
    "summary.after_flush_before_ack=7*off->kill",
    "summary.mid_record=1*torn->kill",  # in the file's first record
    "summary.after_write=kill",
    "summary.after_flush_before_ack=kill",
)


def test_ten_kills_at_random_moments_lose_and_double_nothing_of_5000_records(run: Run, trainer: Trainer) -> None:
    seed = random.Random(7)
    total, kills = 5000, 10
    writer = trainer.streams.open_stream(str(run.logdir), "")
    moments = [seed.choice(MOMENTS) if seed.random() < 0.6 else "" for _ in range(kills)]
    run.start(moments[0])
    killed, added = 0, 0
    next_kill = seed.randrange(20, 250)
    while added < total or trainer.unwritten:
        room = max(0, 200 - trainer.unwritten)  # so that records keep coming through all the kills
        for _ in range(min(seed.randrange(1, 40), total - added, room)):
            added += 1
            trainer.streams.add_event(writer, event(added))
        trainer.turn(0.001)
        assert run.service is not None
        if killed < kills and added >= next_kill and not moments[killed]:
            run.service.signal(9)
        if run.has_ended():
            assert run.wait_ended().signal_name == "SIGKILL"
            killed += 1
            next_kill = added + seed.randrange(20, 250)
            run.start(moments[killed] if killed < kills else "")

    assert killed == kills
    (path,) = event_files(run.logdir)
    assert steps_in(path) == list(range(1, total + 1))
    assert trainer.streams.dropped == 0


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_each_moment_loses_and_doubles_nothing(run: Run, trainer: Trainer, moment: str) -> None:
    run.start(moment)
    writer = trainer.streams.open_stream(str(run.logdir), "")
    numbers = itertools.count(1)

    def killed() -> bool:
        if trainer.unwritten < 200:  # a slow service is not flooded
            trainer.streams.add_event(writer, event(next(numbers)))
        return run.has_ended()

    trainer.until(killed)
    assert run.wait_ended().signal_name == "SIGKILL"
    run.start()
    trainer.until_written()

    (path,) = event_files(run.logdir)
    steps = steps_in(path)
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) == next(numbers) - 1

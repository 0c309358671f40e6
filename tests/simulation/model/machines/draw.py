"""Draw a run on several machines: its tasks, what they train, and every timeout."""

from __future__ import annotations

from random import Random

import msgspec

from procsv.ipc.messaging.launch_settings import LaunchSettings
from tests.simulation.model.program import Program
from tests.simulation.model.world import HANG_S, HANG_S_WAITING, LAUNCH

HANG_FACTOR = 1.5


class Drawn(msgspec.Struct):
    program: Program
    settings: LaunchSettings
    spares: int
    node_timeout_s: float
    pause_s: float
    names_tasks: bool = False
    revives_s: float | None = None
    bytes_per_s: float = 1e9  # the network's speed to one machine


def draw_fleet(rng: Random, machines: int | None) -> Drawn:
    """`machines`: beside the coordinator's and the spare ones. None: usually a few, at times up to 64."""
    count = machines if machines is not None else _draw_count(rng)
    is_served = count > 1 and rng.random() < 0.6
    ps = rng.randrange(1, 1 + max(1, min(4, count // 2))) if is_served else 0
    evaluators = int(count - ps > 1 and rng.random() < 0.2)
    has_chief = rng.random() < 0.7
    workers = count - ps - evaluators + (not has_chief)
    program = Program(
        steps=rng.randrange(60, 200) if is_served else rng.randrange(20, 60),
        import_s=rng.uniform(0.5, 4.0),
        restore_s=rng.uniform(0.05, 1.0),
        compile_s=rng.uniform(0.2, 2.0),
        step_s=rng.choice([0.5, 1.0]),
        snapshot_s=rng.choice([1.0, 2.0, 5.0]),
        copy_s=rng.uniform(0.01, 0.3),
        save_secs=rng.choice([3.0, 8.0, 20.0]),
        max_to_keep=rng.choice([1, 2, 5]),
        together="served" if is_served else "in step",
    )
    limits_s = dict.fromkeys(LAUNCH.hang_limits_s, HANG_S_WAITING)
    limits_s |= dict.fromkeys(("import", "compile"), HANG_S * HANG_FACTOR) | {"service": HANG_S}
    settings = msgspec.structs.replace(
        LAUNCH,
        standby="off",
        restart="gang" if not is_served and rng.random() < 0.5 else "auto",
        hang_timeout_s=HANG_S * HANG_FACTOR,
        hang_limits_s=limits_s,
        workers=workers,
        ps=ps,
        evaluators=evaluators,
        has_chief=has_chief,
        peer_timeout_s=rng.choice([5.0, 10.0]),
        coordinator_timeout_s=rng.choice([30.0, 90.0, 150.0]),
    )
    spares, node_timeout_s, pause_s = rng.choice([0, 0, 1, 1, 2]), rng.uniform(15.0, 45.0), rng.choice([1.0, 5.0, 30.0])
    revives_s = rng.choice([None, None, 0.5, 3.0, 15.0, rng.uniform(0.5, 1.5) * settings.coordinator_timeout_s])
    names_tasks = rng.random() < 0.5
    program.size, bytes_per_s = rng.choice([1 << 16, 1 << 22, 24 << 20]), rng.choice([8 * 2.0**20, 1e8, 1e9])
    if is_served and settings.restart == "auto" and workers and rng.random() < 0.5:
        settings = msgspec.structs.replace(settings, min_workers=rng.randrange(1, workers + 1))
    program.slots = rng.choice([2, 3])
    return Drawn(program, settings, spares, node_timeout_s, pause_s, names_tasks, revives_s, bytes_per_s)


def _draw_count(rng: Random) -> int:
    kind = rng.random()
    if kind < 0.75:
        return rng.randrange(1, 5)
    return rng.randrange(5, 13) if kind < 0.97 else rng.randrange(13, 65)

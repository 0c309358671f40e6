"""List the rooms whose code is mutated, and the tests that must notice."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Room(msgspec.Struct, frozen=True):
    """Files, as patterns relative to the root of the tree, and tests as arguments of pytest."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self, root: Path) -> list[Path]:
        """Return the files, relative to `root`."""
        found = (path.relative_to(root) for pattern in self.sources for path in sorted(root.glob(pattern)))
        return [path for path in found if path.name != "__init__.py"]


_CORE = "tests/checkpoint/test_checkpoint"
ROOMS = {
    "watchdog": Room(
        (
            "procsv/watchdog/core/**/*.py",
            "procsv/watchdog/host/standby.py",
            "procsv/watchdog/machines/core/*.py",
        ),
        (
            "tests/watchdog/core",
            "tests/watchdog/host",
            "tests/watchdog/machines/core",
            "tests/simulation/test_rows.py",
            "tests/simulation/test_several_tasks.py",
        ),
    ),
    "checkpoint": Room(
        ("services/checkpoint/core/*.py",),
        (
            f"{_CORE}_core.py",
            f"{_CORE}_core_directory.py",
            f"{_CORE}_core_dues.py",
            f"{_CORE}_core_orders.py",
            f"{_CORE}_core_plans.py",
            f"{_CORE}_core_restoring.py",
            f"{_CORE}_external_saves.py",
            f"{_CORE}_pending_replies.py",
            f"{_CORE}_restore_choice.py",
            f"{_CORE}_retention.py",
            f"{_CORE}_save_scheduler.py",
            f"{_CORE}_service_state.py",
            f"{_CORE}_states.py",
            "tests/simulation/test_rows.py",
        ),
    ),
    "commit": Room(
        ("services/checkpoint/store/commit.py", "services/checkpoint/store/intent.py"),
        (
            f"{_CORE}_intent.py",
            f"{_CORE}_recovery.py",
            f"{_CORE}_undo.py",
            f"{_CORE}_deletion.py",
            f"{_CORE}_commit.py",
            f"{_CORE}_moved.py",
            f"{_CORE}_power_loss.py",
        ),
    ),
    "catalogue": Room(
        ("services/checkpoint/store/catalog.py", "services/checkpoint/format/manifest.py"),
        (f"{_CORE}_catalog.py", f"{_CORE}_commit.py", "tests/test_damaged_files.py"),
    ),
    "slots": Room(("ipc/shm/slot_*.py",), ("tests/ipc/shm",)),
    "lease": Room(
        ("procsv/base/run/lease.py", "procsv/base/system/fenced_rename.py"),
        (
            "tests/base/run/test_lease.py",
            "tests/base/test_fenced_rename.py",
            "tests/watchdog/edge/test_logdir_lease.py",
            "tests/watchdog/edge/test_records_that_fail.py",
        ),
    ),
    "locks": Room(("procsv/base/system/locks.py",), ("tests/base/test_locks.py",)),
    "encoding": Room(("procsv/base/encoding.py",), ("tests/base/test_encoding.py",)),
}

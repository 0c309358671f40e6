"""A pytest plugin: prove in the tests of a program that it survives.

Loaded by pytest through an entry point; costs nothing until a test asks for its fixture, for what a run needs is imported
then.

    def test_training_survives_a_kill(procsv_launch):
        run = procsv_launch("mypackage.train", faults=["kill trainer at step 100"])
        assert run.wait_end() == 0
        assert run.lost_steps() <= 20
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from procsv.testing.run import Run


class Launch(Protocol):
    """What the fixture gives: call it to launch a program under `procsv launch`."""

    def __call__(
        self,
        target: str,
        *args: str,
        faults: Sequence[str] = (),
        plan: str | Path | None = None,
        options: Sequence[str] = (),
        logdir: str | Path | None = None,
        **env: str,
    ) -> Run:
        """Starts `procsv launch … target args` and returns at once.

        `faults` are lines as `--fault` takes them, `plan` is a TOML file, `options` go to launch as they are, `env` is added
        to the environment.  `logdir` defaults to a directory of the test's own; the same one again resumes there.
        """
        ...


@pytest.fixture
def procsv_launch(tmp_path: Path) -> Iterator[Launch]:
    """Launches programs under procsv; whatever still runs when the test is over is ended, with all its processes."""
    from procsv.testing.run import start

    runs: list[Run] = []

    def launch(
        target: str,
        *args: str,
        faults: Sequence[str] = (),
        plan: str | Path | None = None,
        options: Sequence[str] = (),
        logdir: str | Path | None = None,
        **env: str,
    ) -> Run:
        told = [word for fault in faults for word in ("--fault", fault)]
        told += ["--plan", str(plan)] if plan is not None else []
        where = Path(logdir) if logdir is not None else tmp_path / "logdir"
        runs.append(start(where, (*told, *options, target, *args), env=env))
        return runs[-1]

    yield launch
    for run in runs:
        run.end()

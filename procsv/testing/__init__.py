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
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from procsv.testing.run import Run


class Launch:
    """What the fixture gives: call it to launch a program under `procsv launch`."""

    def __init__(self, logdir: Path) -> None:
        self._logdir = logdir
        self._runs: list[Run] = []

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
        """Start `procsv launch … target args` and return at once.

        `faults` are lines as `--fault` takes them, `plan` is a TOML file, `options` go to launch as they are, `env` is added
        to the environment.  `logdir` defaults to a directory of the test's own; the same one again resumes there.
        """
        from procsv.testing.run import start

        told = [word for fault in faults for word in ("--fault", fault)]
        told += ["--plan", str(plan)] if plan is not None else []
        self._runs.append(start(Path(logdir or self._logdir), (*told, *options, target, *args), env=env))
        return self._runs[-1]

    def end_runs(self) -> None:
        for run in self._runs:
            run.end()


@pytest.fixture
def procsv_launch(tmp_path: Path) -> Iterator[Launch]:
    """Launches programs under procsv; whatever still runs when the test is over is ended, with all its processes."""
    launch = Launch(tmp_path / "logdir")
    yield launch
    launch.end_runs()

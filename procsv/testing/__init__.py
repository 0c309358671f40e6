"""A pytest plugin: test that a program survives crashes.

pytest loads the plugin through an entry point. It imports what a run needs only when a test uses
its fixture, so it costs other tests nothing.

    def test_training_survives_a_kill(procsv_launch):
        run = procsv_launch("mypackage.train", faults=["kill trainer at step 100"])
        run.assert_completed(timeout=300)
        assert run.lost_steps() <= 20

A failed test shows what its runs printed, and their last events. `procsv_timeout` in pytest's
configuration limits how long a test waits for any single event.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from procsv.testing.run import Run

__all__ = ["Launch", "procsv_launch"]  # pytest finds its hooks by dir(), so they need not be listed here


class Launch:
    """The fixture's value: call it to launch a program under `procsv launch`."""

    def __init__(self, logdir: Path, timeout: str = "", python_path: Sequence[str | Path] = ()) -> None:
        """The fixture calls this.

        Args:
            logdir: The logdir of launches that name no other.
            timeout: The longest wait for any single event, such as `90s`; "" for the default.
            python_path: Directories with the program's modules.
        """
        self._logdir, self._timeout, self._python_path = logdir, timeout, python_path
        self.runs: list[Run] = []

    def __call__(
        self,
        target: str,
        *args: str,
        faults: Sequence[str] = (),
        plan: str | Path | None = None,
        options: Sequence[str] = (),
        logdir: str | Path | None = None,
        cwd: str | Path | None = None,
        **env: str,
    ) -> Run:
        """Start `procsv launch … target args` and return at once.

        Args:
            target: A module (`pkg.module`), a file or a function (`pkg.module:function`).
            *args: Arguments of the program.
            faults: Lines as `--fault` takes them.
            plan: A TOML file of faults.
            options: Further options of `procsv launch`.
            logdir: By default a directory that only this test uses.  A second launch in the same
                logdir resumes the run.  If the run is complete, it needs `options=["--resume"]`.
            cwd: By default the test's working directory.  Python finds modules there, in pytest's
                `pythonpath`, and among the installed packages.
            **env: Variables to add to the environment.
        """
        from procsv.base.units import parse_duration
        from procsv.testing.run import start

        told = [word for fault in faults for word in ("--fault", fault)]
        told += ["--plan", str(plan)] if plan is not None else []
        given = env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        places = [str(place) for place in self._python_path] + ([given] if given else [])
        run = start(
            Path(logdir or self._logdir),
            (*told, *options, target, *args),
            env={**env, "PYTHONPATH": os.pathsep.join(places)} if places else env,
            cwd=Path(cwd) if cwd is not None else None,
            news_s=parse_duration(self._timeout) if self._timeout else None,
        )
        self.runs.append(run)
        return run

    def end_runs(self) -> None:
        for run in self.runs:
            run.end()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("procsv_timeout", "longest time that news of a run may take in a test: 90, 90s, 5m", default="")


@pytest.fixture
def procsv_launch(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launch]:
    """Launch programs under procsv: the fixture's value is a `Launch`.

    At the end of the test, the fixture ends every run that still runs, with all its processes.
    """
    config = request.config
    launch = Launch(tmp_path / "logdir", config.getini("procsv_timeout"), config.getini("pythonpath"))
    yield launch
    launch.end_runs()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failed test each run's state, output and last events."""
    report = yield
    launch = getattr(item, "funcargs", {}).get("procsv_launch")
    if report.failed and report.when == "call" and isinstance(launch, Launch):
        report.sections += [(f"procsv launch, {run.logdir}", run.summary()) for run in launch.runs]
    return report

"""The checkpoint service's threads log their failures without flooding the log."""

from __future__ import annotations

import threading

import pytest

from procsv.services.checkpoint.worker import Outcomes, Worker


def test_row_47_a_failure_that_repeats_for_days_is_one_traceback_and_a_few_lines(
    capfd: pytest.CaptureFixture[str],
) -> None:
    news = threading.Event()
    outcomes = Outcomes(news.set)
    worker = Worker("disk", outcomes)
    errors: list[Exception] = []

    def run(error: Exception | None) -> None:
        def job() -> None:
            if error is not None:
                raise error

        news.clear()
        worker.run_job(job, lambda _: None, errors.append)
        assert news.wait(300.0)
        outcomes.deliver()

    for number in range(1000):
        run(OSError(28, f"No space left on device for {number} bytes"))
    said = capfd.readouterr().err
    assert len(errors) == 1000, "each one is an outcome"
    assert said.count("Traceback") == 1
    assert said.count("the same again") == 10
    run(None)
    run(OSError(28, "No space left on device for 7 bytes"))
    assert capfd.readouterr().err.count("Traceback") == 1, "after a success it is news again"
    worker.close()

"""A fit continues when the program calls `fit` again after an exception, even if the second call is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import keras_again
from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

PROGRAM = str(Path(keras_again.__file__))
QUICK = ("--backoff", "0.1s..1s", "--snapshot-secs", "0.05")
KILL = "kill trainer at step 40"
BATCHES = 80


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the output of an undisturbed fit."""
    with launched(tmp_path_factory.mktemp("alone") / "run", PROGRAM) as run:
        return run.digest_at_end()


@pytest.mark.parametrize("way", ["callback", "drop-in"])
def test_a_fit_called_again_after_an_exception_and_then_killed_ends_as_an_undisturbed_one(
    way: str, wanted: str, tmp_path: Path
) -> None:
    options, program = ((), ()) if way == "callback" else (("--drop-in",), ("--directory", str(tmp_path / "theirs")))
    program = ("--raise-after", "20", "--pause", "0.02", *program)
    with launched(tmp_path / "run", *options, *QUICK, "--fault", KILL, PROGRAM, *program, standby=None) as run:
        assert run.digest_at_end() == wanted
        assert [(e["fit"], e["how"]) for e in run.events("fit_begun")] == [
            (1, "fresh"),
            (1, "resumed"),
            (1, "resumed"),
            (1, "resumed"),
        ]
        assert run.said().count("called again") == 2  # the call that raises continues too, and raises once more
        assert run.said().count("a batch") < 2 * BATCHES

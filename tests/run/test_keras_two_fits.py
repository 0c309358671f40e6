"""After a crash, a program's fits are recognized by their content and a finished fit is not trained again."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from procsv.base import exit_codes
from tests.support import keras_folds, keras_two_fits, keras_unseeded
from tests.support.launched import launched

pytestmark = [pytest.mark.fault, pytest.mark.long]

PROGRAM = str(Path(keras_two_fits.__file__))
QUICK = ("--backoff", "0.1s..1s", "--snapshot-secs", "0.05")


def test_a_finished_fit_is_restored_to_its_end_after_the_next_one_crashes(tmp_path: Path) -> None:
    with launched(tmp_path / "alone", PROGRAM, "--quick") as run:
        wanted = run.digest_at_end()
    with launched(tmp_path / "run", *QUICK, "--fault", "kill trainer at step 38", PROGRAM) as run:
        assert run.digest_at_end() == wanted
        assert run.said().count("first fit, a batch") == 20
        assert run.said().count("second fit, a batch") < 50
        assert run.said().count("procsv: fit 1 had already ") == 1
        batches = run.said().count("fit, a batch")
        resumed = run.events("recovered")[-1]
        assert 20 < resumed["step"] < 38
        assert [(e["fit"], e["how"]) for e in run.events("fit_begun")] == [
            (1, "fresh"),
            (2, "fresh"),
            (1, "ended"),
            (2, "resumed"),
        ]
    with launched(tmp_path / "run", PROGRAM) as run:  # everything is complete
        assert run.digest_at_end() == wanted
        assert run.said().count("fit, a batch") == batches


def test_a_fit_resumed_at_its_very_end_counts_as_finished(tmp_path: Path) -> None:
    with launched(tmp_path / "alone", PROGRAM, "--quick") as run:
        wanted = run.digest_at_end()
    kills = ("--fault", "kill trainer at step 21", "--fault", "kill trainer at step 38")
    with launched(tmp_path / "run", *QUICK, *kills, PROGRAM) as run:
        assert run.digest_at_end() == wanted
        begun = [(e["fit"], e["how"]) for e in run.events("fit_begun")]
        assert begun[2:] == [(1, "ended"), (2, "fresh"), (1, "ended"), (2, "resumed")]
        assert run.said().count("first fit, a batch") == 20


def test_a_fit_that_has_changed_starts_over_and_so_do_the_fits_after_it(tmp_path: Path) -> None:
    with launched(tmp_path / "alone", PROGRAM, "--quick", "--epochs", "1") as run:
        wanted = run.digest_at_end()
    with launched(tmp_path / "run", *QUICK, PROGRAM, STANDS="1") as run:
        run.wait_for("the second fit", lambda: run.said().count("second fit, a batch") > 5)
        run.kill("watchdog", signal.SIGTERM)
        assert run.wait_end() == exit_codes.RESUMABLE
        before = run.said()
    with launched(tmp_path / "run", PROGRAM, "--quick", "--epochs", "1") as run:
        assert run.digest_at_end() == wanted
        assert "fit 1 is not " in run.said()
        said = run.said().removeprefix(before)
        assert said.count("first fit, a batch") == 10
        assert said.count("second fit, a batch") == 30


def test_a_program_that_skips_finished_folds_never_gets_another_folds_result(tmp_path: Path) -> None:
    program = str(Path(keras_folds.__file__))

    def folds(name: str, *options: str) -> list[str]:
        (tmp_path / name).mkdir()
        with launched(tmp_path / name / "run", "--drop-in", *options, program, cwd=tmp_path / name) as run:
            run.assert_completed()
            return re.findall(r"fold . ended with [0-9a-f]{16}", run.said())

    wanted = folds("alone")
    assert len(set(wanted)) == keras_folds.FOLDS
    # 30 batches a fold: the first kill is in the third fold, the next in the fourth, the second
    # fold of its attempt
    kills = ("--fault", "kill trainer at step 75", "--fault", "kill trainer at step 100")
    assert folds("killed", *QUICK, *kills) == wanted


def test_a_program_without_a_seed_does_not_train_a_finished_fit_again(tmp_path: Path) -> None:
    program = str(Path(keras_unseeded.__file__))
    with launched(tmp_path / "run", "--drop-in", *QUICK, "--fault", "kill trainer at step 30", program) as run:
        run.assert_completed()
        said = run.said()
        assert said.count("first fit, a batch") == 20
        assert 20 <= said.count("second fit, a batch") < 40
        first = re.findall(r"first fit ended with ([0-9a-f]{16})", said)
        assert len(first) == 2
        assert len(set(first)) == 1
    with launched(tmp_path / "another", "--drop-in", program) as run:
        run.assert_completed()
        assert first[0] not in run.said()  # another run has other numbers

"""procsv warns about TensorFlow versions beyond the ones it is tested with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tensorflow as tf

import procsv
from procsv.training.sessions import attach
from procsv.training.sessions.attach import NEWEST, OLDEST, find_warning
from tests.support.naming import Naming

ROOT = Path(__file__).parents[3]


def test_a_version_beyond_the_tested_ones_gets_a_warning_and_one_between_them_does_not() -> None:
    assert find_warning("2.16.1") == find_warning("2.19.0-rc1") == find_warning("2.21.0") == ""
    assert find_warning("2.9.3") == Naming("2.9.3 is older", "(2.16 to 2.21)")
    assert "2.22.0 is newer" in find_warning("2.22.0")
    assert "3.0.0 is newer" in find_warning("3.0.0")
    assert find_warning("git-abc") == ""


def test_a_program_is_warned_once_when_it_creates_a_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tf, "__version__", "9.9.9")
    monkeypatch.setattr(attach, "_said", set())
    for _ in range(2):
        with tf.Graph().as_default():
            tf.compat.v1.train.get_or_create_global_step()
            procsv.Supervisor(logdir=None)
    assert [record.getMessage() for record in caplog.records].count(f"procsv: {find_warning('9.9.9')}") == 1


def test_the_page_the_script_and_the_dependencies_name_the_same_versions() -> None:
    page, script = (ROOT / "docs" / "versions.md").read_text(), (ROOT / "scripts" / "versions").read_text()
    passed = {
        tuple(map(int, row))
        for row in re.findall(r"^\| (\d+)\.(\d+)[\d.]* \| .* \| passed\b.* \|$", page, re.MULTILINE)
    }
    assert {OLDEST, NEWEST} <= passed
    assert f"\nNEWEST={NEWEST[0]}.{NEWEST[1]}\n" in script
    assert f'set -- {OLDEST[0]}.{OLDEST[1]} "$NEWEST"' in script
    assert f'"tensorflow>={OLDEST[0]}.{OLDEST[1]}"' in (ROOT / "pyproject.toml").read_text()

"""The README's programs run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from procsv.base.run.saved_step import saved_step
from tests.support.launched import procsv

ROOT = Path(__file__).parents[1]


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.long
@pytest.mark.fault
@pytest.mark.parametrize("kind", ["the supervisor", "the monitored session", "the checkpoint manager"])
def test_a_program_of_the_readme_trains_and_saves_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, with_hooks, eager = snippets()
    programs = {
        "the supervisor": whole,
        "the monitored session": "".join([*whole.splitlines(keepends=True)[:-4], with_hooks]),
        "the checkpoint manager": eager,
    }
    Path("train.py").write_text(programs[kind])
    done = procsv("launch", "--standby", "off", "train.py")
    assert done.returncode == 0, done.stderr
    assert saved_step(tmp_path / "runs" / "mine") == 1000
    status = procsv("status", "runs/mine")
    assert "done" in status.stdout, status.stderr

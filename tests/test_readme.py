"""The README's programs run as written."""

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
def test_the_readmes_programs_train_and_save_one_after_the_other_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    supervised, hooks, eager = snippets()
    monitored = "".join([*supervised.splitlines(keepends=True)[:-4], hooks])
    for name, program in {"supervised": supervised, "monitored": monitored, "eager": eager}.items():
        Path(f"{name}.py").write_text(program)
        done = procsv("launch", "--standby", "off", f"{name}.py")
        assert done.returncode == 0, done.stderr
        assert saved_step(tmp_path / "runs" / name) == 1000
        status = procsv("status", f"runs/{name}")
        assert "done" in status.stdout, status.stderr

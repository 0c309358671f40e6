"""`checkpoints.json` keeps the service's state across runs, and a damaged one is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from procsv.services.checkpoint.format.state_file import StateFile, read_state, write_state
from procsv.services.checkpoint.store.service_state import StoredState
from tests.support.stale_mount import StaleMount


@pytest.mark.parametrize("damaged", [b"\xff", b"{", b'{"runs":["b"],"next_keep":{},"checksum":"0"}', b'{"runs":["b"]}'])
def test_a_damaged_file_is_set_aside_reported_once_and_started_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], damaged: bytes
) -> None:
    state = StoredState(tmp_path)
    state.note_runs(["a"])
    (tmp_path / "checkpoints.json").write_bytes(damaged)
    assert state.runs() == set()
    assert state.next_keep("model.ckpt", 7.0) == 7.0
    assert (tmp_path / "checkpoints.json.damaged").read_bytes() == damaged
    assert capfd.readouterr().err.count("checkpoints.json was damaged") == 1
    state.note_runs(["c"])
    assert StoredState(tmp_path).runs() == {"c"}


def test_a_file_that_another_machine_replaces_during_a_read_is_read_again(stale_files: StaleMount) -> None:
    directory = stale_files.directory
    state, listed = StoredState(directory), str(directory / "model.ckpt-7")
    state.note_runs(["a"])
    write_state(directory / "checkpoint", listed, [listed], relative=False)
    stale_files.replace_files()
    assert state.runs() == {"a"}
    assert read_state(directory / "checkpoint") == StateFile(listed, (listed,))

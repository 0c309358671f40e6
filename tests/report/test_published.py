"""The schemas in docs/schema/ describe completely what real runs write and print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.launched import launched, procsv

SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"


def validator(name: str) -> Any:
    """Return a closed validator of a schema: an unknown field is an error."""
    schema = json.loads((SCHEMAS / name).read_text())
    for kind in schema["$defs"].values():
        if "properties" in kind:
            kind["additionalProperties"] = False
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.fault
@pytest.mark.long
def test_real_runs_write_and_print_what_the_schemas_say(tmp_path: Path) -> None:
    status, report, line = validator("status.json"), validator("report.json"), validator("journal-line.json")
    logdir = tmp_path / "logdir"

    def check() -> None:
        status.validate(json.loads(procsv("status", str(logdir), "--json").stdout))
        report.validate(json.loads(procsv("report", str(logdir), "--json").stdout))

    fault = ("--fault", "kill trainer at step 20")
    with launched(logdir, *fault, "tests.support.numpy_training", "1000000", "0.02", standby="warm") as run:
        run.wait_event("spawned", role="trainer")
        check()
        run.wait_event("recovered", count=2)
        check()
        stopped = procsv("stop", str(logdir))
        assert stopped.returncode == 0, stopped.stderr
        assert run.wait_end() == 75
    check()
    lines = [json.loads(text) for text in (logdir / "procsv" / "journal.jsonl").read_text().splitlines()]
    for entry in lines:
        line.validate(entry)
    seen = {entry["event"] for entry in lines}
    assert {"run_started", "spawned", "fault", "exited", "restarting", "recovered", "stopped"} <= seen


def test_an_unpublished_field_or_event_in_a_line_is_found() -> None:
    line = validator("journal-line.json")
    good = {"time": 1.0, "event": "spawned", "role": "trainer", "incarnation": 1, "pid": 7}
    assert line.is_valid(good)
    assert not line.is_valid({**good, "more": 1})
    assert not line.is_valid({**good, "pid": "7"})
    assert not line.is_valid({**good, "event": "spawn"})

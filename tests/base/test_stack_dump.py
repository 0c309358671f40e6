"""The file that stacks are written to: made anew when somebody has removed it."""

from __future__ import annotations

from pathlib import Path

from tests.support.programs import running, until

DUMPS = """
    import os, sys
    from pathlib import Path
    from procsv.base.signals import DUMP_SIGNAL
    from procsv.base.system.stack_dump import arm
    dump = arm(Path(sys.argv[1]))
    for line in sys.stdin:
        dump.restore()
        os.kill(os.getpid(), DUMP_SIGNAL)
        print("dumped", flush=True)
"""


def test_row_50_stacks_are_written_to_the_file_that_is_there_and_to_the_log_while_there_can_be_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run" / "stacks.1.txt"
    with running(DUMPS, path) as program:
        program.tell()
        program.wait_said("dumped")
        assert not path.exists(), "its directory is not there yet"
        path.parent.mkdir()
        for times in (2, 3):
            program.tell()
            program.wait_said("dumped", times)
            until(lambda: "most recent call first" in path.read_text(), lambda: None)
            path.unlink()

"""A print to a log on a full disk loses that output and nothing else."""

import subprocess
import sys
from pathlib import Path

from tests.support.programs import running
from tests.support.stale_mount import StaleMount

PROGRAM = """
import resource, signal, sys
from procsv.base.system.output import keep_output_going
keep_output_going()
print("before", flush=True)
with open("/dev/full", "w") as full:
    import os
    os.dup2(full.fileno(), 1)
for line in range(10_000):
    print("to a full disk", line, flush=True)
print(sys.stdout.buffer.raw.refused_bytes > 0, sys.stdout.name, sys.stdout.mode, file=sys.stderr)
"""


def test_a_print_to_a_full_disk_does_not_end_the_program(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as stdout:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=300, check=False
        )

    assert (done.returncode, done.stderr) == (0, "True <stdout> w\n")
    assert log.read_text() == "before\n"


def test_a_line_is_in_the_log_once_it_is_printed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from procsv.base.system.output import keep_output_going; keep_output_going();"
        "print('a line'); sys.exit(Path(sys.argv[1]).read_text() != 'a line\\n')"
    )
    log = tmp_path / "log"
    with log.open("w") as stdout:
        done = subprocess.run([sys.executable, "-c", program, str(log)], stdout=stdout, timeout=300, check=False)

    assert done.returncode == 0


PRINTS = """
import os, sys
from pathlib import Path
from procsv.base.system.output import keep_output_going
news, log = os.dup(1), os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(log, 1)
keep_output_going()
for line in sys.stdin:
    print(line, end="")
    os.write(news, f"heard {sys.stdout.buffer.raw.refused_bytes}\\n".encode())
"""


def test_a_stale_log_is_reopened_and_output_after_its_end_is_dropped(
    stale_files: StaleMount,
) -> None:
    log = stale_files.directory / "log"
    with running(PRINTS, log) as program:
        for number in (1, 2):
            program.tell(f"line {number}")
            assert program.wait_said("heard", number) == "0"
            stale_files.make_stale()
        assert log.read_text() == "line 1\nline 2\n"
        log.unlink()
        program.tell("line 3")
        assert program.wait_said("heard", 3) == "7"
        assert not log.exists(), "it is not for a print to make"

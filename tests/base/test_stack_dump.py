"""The stack file is recreated after removal, and the main thread's stack comes first."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

from procsv.base.signals import DUMP_SIGNAL, MAIN_DUMP_SIGNAL
from procsv.base.system.processes import spawn
from procsv.ipc.messaging.zmq_transport import Waiter
from procsv.watchdog.core.hangs.stack_parser import read_stacks
from tests.support.programs import ROOT, freeze, running, until

DUMPS = """
    import os, sys
    from pathlib import Path
    from procsv.base.signals import DUMP_SIGNAL
    from procsv.base.system.stack_dump import arm
    dump = arm(Path(sys.argv[1]))
    for line in sys.stdin:
        dump.renew_file()
        os.kill(os.getpid(), DUMP_SIGNAL)
        print("dumped", flush=True)
"""


def test_row_50_stacks_go_to_the_present_file_and_to_the_log_while_there_can_be_none(
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
            until(lambda: "hread 0x" in path.read_text(), lambda: None)
            path.unlink()


BUSY = """
    import sys, threading
    from pathlib import Path
    from procsv.base.system.stack_dump import arm
    dump = arm(Path(sys.argv[1]))
    never = threading.Event()

    def works():
        while not never.wait(1e-4):
            sorted(map(str, range(100)))

    for _ in range(4):
        threading.Thread(target=works, daemon=True).start()

    def hangs():
        print("hangs", flush=True)
        never.wait()

    hangs()
"""


def test_a_process_that_is_woken_to_dump_its_stacks_and_die_writes_its_main_threads_stack_first(
    tmp_path: Path,
) -> None:
    stacks, log = tmp_path / "stacks.txt", tmp_path / "log"
    argv = [sys.executable, "-c", textwrap.dedent(BUSY), str(stacks)]
    child = spawn(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, log=log)
    waiter = Waiter()
    waiter.register(child.pidfd)
    try:
        until(lambda: log.exists() and log.read_text() == "hangs\n", lambda: Waiter().wait(0.005))
        freeze(child.pid)
        for number in (MAIN_DUMP_SIGNAL, DUMP_SIGNAL, signal.SIGABRT, signal.SIGCONT):
            child.signal(number)
        assert waiter.wait(300.0), "it does not end"
    finally:
        child.signal_tree(signal.SIGKILL)
        ended = child.reap()
    assert ended.signal in (signal.SIGABRT, signal.SIGSEGV)  # dumping all threads may crash the process
    main, *others = read_stacks(stacks.read_text())
    assert main.is_alone
    assert "hangs" in [frame.function for frame in main.frames]
    assert others
    assert not any(stack.is_alone for stack in others)

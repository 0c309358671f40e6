"""Under procsv a program sees what `python TARGET ARGS…` gives it."""

import json
import os
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from tests.support.launched import launched

LOOK = """
import json, multiprocessing, os, pickle, sys

class Thing:
    pass

def child(queue):
    queue.put([__name__, Thing.__module__])

def look():
    main = sys.modules["__main__"]
    spec = main.__spec__
    return {
        "name": __name__, "argv": sys.argv, "path0": sys.path[0], "cwd": os.getcwd(), "file": __file__,
        "spec": spec.name if spec else None, "package": main.__package__, "is_main": main.__dict__ is globals(),
        "names": sorted(main.__dict__), "pickled": pickle.loads(pickle.dumps(Thing)) is Thing,
    }

if __name__ == "__main__":
    facts = look()
    if "--spawn" not in sys.argv:
        print(json.dumps(facts))
        sys.exit()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    facts["spawned"] = queue.get(timeout=300)
    process.join()
    print(json.dumps(facts))
"""
UNDER_US = (
    "import sys; from pathlib import Path; from procsv.base.system.target import find_target;"
    "from procsv.training.process.program import run_program;"
    "run_program(find_target(sys.argv[1], Path.cwd()), sys.argv[2:])"
)


def _facts(*argv: str, cwd: Path) -> dict[str, object]:
    done = subprocess.run([sys.executable, *argv], cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(facts, dict)
    return facts


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "look.py").write_text(LOOK)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(LOOK)
    zipapp.create_archive(tmp_path / "app", tmp_path / "bundle", interpreter="python3")
    return tmp_path


@pytest.mark.parametrize(
    ("target", "python", "args"),
    [
        ("pkg.look", ["-m", "pkg.look"], ["--spawn"]),
        ("pkg/look.py", ["pkg/look.py"], ["--spawn"]),
        ("app/", ["app/"], ["--steps", "3"]),  # python itself cannot spawn from a directory
        ("bundle", ["bundle"], ["--steps", "3"]),
    ],
)
def test_a_program_sees_what_python_gives_it(program: Path, target: str, python: list[str], args: list[str]) -> None:
    ours = _facts("-c", UNDER_US, target, *args, cwd=program)
    pythons = _facts(*python, *args, cwd=program)

    assert ours == pythons


def test_a_function_is_called_as_a_console_script_calls_it(program: Path) -> None:
    (program / "pkg" / "tool.py").write_text(
        "import json, sys\ndef main():\n    print(json.dumps({'args': sys.argv[1:], 'name': __name__}))\n    return 7\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", UNDER_US, "pkg.tool:main", "a", "-b"],
        cwd=program,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert (done.returncode, json.loads(done.stdout)) == (7, {"args": ["a", "-b"], "name": "pkg.tool"})


def test_main_holds_only_the_programs_own_names(program: Path) -> None:
    facts = _facts("-c", UNDER_US, "pkg.look", cwd=program)

    names = facts["names"]
    assert isinstance(names, list)
    assert not [name for name in names if "procsv" in name]
    assert os.fspath(program) == facts["path0"]


def test_a_program_that_replaces_its_process_learns_that_it_is_unprotected_and_what_to_do(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os, sys\n"
        "if os.environ.get('PYTHONHASHSEED') != '0':\n"
        "    os.environ['PYTHONHASHSEED'] = '0'\n"
        "    os.execvp(sys.executable, [sys.executable, *sys.argv])\n"
        "print('trains', sys.argv[1], flush=True)\n"
    )
    with launched(tmp_path / "run", str(program), "far") as run:
        assert run.wait_end() == 0
        said = run.said()
    assert said.count("trains far") == 1
    assert said.count("replaces its process, ") == 1
    assert ": PYTHONHASHSEED=0 procsv launch" in said


def test_a_replaced_child_of_the_program_is_not_reported(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    os.execv(sys.executable, [sys.executable, '-c', 'print(\"a child\")'])\n"
        "os.wait()\n"
    )
    with launched(tmp_path / "run", str(program)) as run:
        assert run.wait_end() == 0
        assert "a child" in run.said()
        assert "replaces its process" not in run.said()


def test_an_edited_script_runs_even_if_its_time_and_size_are_the_same(tmp_path: Path) -> None:
    script, said = tmp_path / "train.py", []
    for word in ("once", "more"):
        script.write_text(f"print('{word}')\n")
        os.utime(script, (10**9, 10**9))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        command = [sys.executable, "-c", UNDER_US, "train.py"]
        said.append(subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True))
    assert [done.stdout.strip() for done in said] == ["once", "more"]
    assert list(tmp_path.iterdir()) == [script]


def test_a_program_that_waits_for_all_threads_and_makes_its_own_group_ends_as_without_procsv(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os, signal, sys, threading\n"
        "os.setpgrp(), os.setpgid(0, 0), os.setsid()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.killpg(0, signal.SIGTERM)\n"
        "for _ in range(3):\n"
        "    threading.Thread(target=threading.Event().wait, args=(0.1,)).start()\n"
        "for thread in threading.enumerate():\n"
        "    if thread is not threading.main_thread():\n"
        "        thread.join()\n"
        "print('left:', threading.active_count(), sys.stdin.name, sys.stdin.mode)\n"
    )
    with launched(tmp_path / "run", str(program)) as run:
        assert run.wait_end() == 0
        assert "left: 1 <stdin> r" in run.said()

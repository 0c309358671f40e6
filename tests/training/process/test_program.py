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

"""The wheel has the whole package, and the README's first commands work in a fresh virtual environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.launched import NEWS_S_MAX, environment

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
TREE = (
    "procsv",
    "services",
    "ipc",
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
)
BUILD = "import sys, setuptools.build_meta as build; print(getattr(build, sys.argv[1])(sys.argv[2]))"


def run(*argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in environment(**env).items() if name != "PYTHONPATH"}
    return subprocess.run(argv, cwd=cwd, env=variables, capture_output=True, text=True, timeout=NEWS_S_MAX, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the sdist of a copy of the tree, as pip does."""
    place = tmp_path_factory.mktemp("wheel")
    (place / "tree").mkdir()
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, place / "tree" / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, place / "tree" / name)
    packed = build("build_sdist", place / "tree", place)
    shutil.unpack_archive(packed, place, filter="data")
    return build("build_wheel", place / packed.name.removesuffix(".tar.gz"), place)


def build(kind: str, tree: Path, place: Path) -> Path:
    built = run(sys.executable, "-c", BUILD, kind, str(place), cwd=tree)
    assert built.returncode == 0, built.stdout + built.stderr
    return place / built.stdout.split()[-1]


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the commands of an environment with the wheel. Its dependencies come from the tests' environment."""
    place = tmp_path_factory.mktemp("env")
    venv.create(place, symlinks=True)
    done = run(
        *(sys.executable, "-m", "pip", "--python", str(place), "--disable-pip-version-check"),
        *("install", "--quiet", "--no-deps", "--no-index", str(wheel)),
        cwd=place,
    )
    assert done.returncode == 0, done.stderr
    own = next(place.glob("lib/python*/site-packages"))
    (own / "needed.pth").write_text("\n".join(site.getsitepackages()))
    return place / "bin"


def test_the_wheel_has_exactly_the_modules_of_the_tree_under_their_names(wheel: Path) -> None:
    expected = {
        str(Path("procsv", top if top != "procsv" else "", file.relative_to(ROOT / top)))
        for top in ("procsv", "services", "ipc")
        for file in (ROOT / top).rglob("*.py")
        if not any(parent.is_symlink() for parent in file.parents)
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    templates = {f"procsv/examples/deploy/{name}" for name in ("job.yaml", "jobset.yaml", "slurm.sbatch")}
    assert names == expected | templates | {"procsv/py.typed"}


def test_the_metadata_has_author_licence_readme_and_changelog(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
    metadata = archive.read(name).decode()
    for words in ("Author: ", "License-Expression: Apache-2.0", "pip install 'procsv[examples]'", "# Changelog"):
        assert words in metadata, words
    assert not re.findall(r"\]\((?!https?:)[^)]*\)", metadata), "relative links lead nowhere on PyPI"


@pytest.mark.fault
def test_the_readmes_first_commands_run_from_the_wheel_alone(scripts: Path, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    launch = next(
        line.strip() for line in text.splitlines() if line.startswith("    procsv launch --logdir runs/digits")
    )
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    where = run(str(scripts / "python"), "-c", "import procsv; print(procsv.__file__)", cwd=tmp_path)
    assert where.stdout.startswith(str(scripts.parent)), where.stderr
    program, *args = shlex.split(launch)
    trained = run(str(scripts / program), *args, "--steps", "100", cwd=tmp_path, PATH=path)
    assert trained.returncode == 0, trained.stderr
    assert "test accuracy" in trained.stdout
    for command, words in (
        ("status", "done"),
        ("ls", "runs/digits"),
        ("report", "completed in"),
        ("checkpoints", "100"),
    ):
        done = run(str(scripts / program), command, cwd=tmp_path, PATH=path)
        assert done.returncode == 0, done.stderr
        assert words in done.stdout

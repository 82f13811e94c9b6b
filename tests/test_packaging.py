"""The wheel, the pinned versions, the Makefile, and the version number."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LARGEST_SAMPLE = 6_000_000


def canonical(name: str) -> str:
    """A package's name in lower case with hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints() -> dict[str, str]:
    """The pinned version of each package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9A-Za-z.!]+", line), f"constraints.txt: {line!r} is not name==version"
    pairs = [line.split("==") for line in lines]
    pinned = {canonical(name): version for name, version in pairs}
    assert len(pinned) == len(pairs), "constraints.txt names a package twice"
    return pinned


def test_every_direct_dependency_is_pinned() -> None:
    direct = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    names = {canonical(re.match(r"[A-Za-z0-9._-]+", requirement)[0]) for requirement in direct}  # type: ignore[index]
    assert names - constraints().keys() == set()


def test_no_cuda_package_is_pinned() -> None:
    """A pinned CUDA package would tie torch's Linux builds to one CUDA version."""
    assert [name for name in constraints() if name.startswith(("nvidia-", "cuda-"))] == []


def test_version_is_the_same_everywhere() -> None:
    version = PROJECT["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]) == version


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Names and sizes of the files in the wheel, built without a network as in CI."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {entry.filename: entry.file_size for entry in archive.infolist()}


def test_wheel_has_all_package_files(wheel: dict[str, int]) -> None:
    """Including data files: YAML, CSS, the sample, the embedded tokenizer, py.typed."""
    package = ROOT / "src" / "arcvq"
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {f"arcvq/{path.relative_to(package).as_posix()}" for path in files}
    assert expected - wheel.keys() == set()
    assert {name.split("/")[0] for name in wheel} == {"arcvq", f"arcvq-{PROJECT['version']}.dist-info"}


def test_sample_stays_small(wheel: dict[str, int]) -> None:
    sample = sum(size for name, size in wheel.items() if name.startswith("arcvq/data/sample/"))
    assert 0 < sample <= LARGEST_SAMPLE


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the Makefile and a fake Python that only logs its calls; `-m venv` copies it."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    fake = tmp_path / "python"
    fake.write_text(
        '#!/bin/sh\necho "$@" >>calls.txt\n'
        'if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && [ ! -e broken ]; fi\n',
        encoding="utf-8",
    )
    fake.chmod(0o755)
    return tmp_path


def make(project: Path, target: str, *, fails: bool = False) -> list[str]:
    """Run `make target` and return its calls of Python."""
    calls = project / "calls.txt"
    calls.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", target, "PYTHON=./python"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []


def installed_by(calls: list[str]) -> list[str]:
    """What the calls install with pip."""
    return [call.split()[-1] for call in calls if " pip install " in f" {call} "]


def test_make_reuses_environment(project: Path) -> None:
    assert installed_by(make(project, "setup")) == ["."]
    assert make(project, "setup") == []
    assert installed_by(make(project, "test")) == [".[dev]"]
    assert make(project, "test") == ["-m pytest -n 2"]
    assert make(project, "setup-dev") == []


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_make_installs_again_after_change(project: Path, changed: str) -> None:
    make(project, "setup-dev")
    later = (project / ".venv" / ".installed-dev").stat().st_mtime + 10
    os.utime(project / changed, (later, later))
    assert installed_by(make(project, "test")) == [".", ".[dev]"]


def test_make_starts_over_after_failed_setup(project: Path) -> None:
    """A Python without ensurepip leaves half an environment, which must not be used."""
    (project / "broken").touch()
    make(project, "setup", fails=True)
    (project / "broken").unlink()
    calls = make(project, "setup")
    assert "-m venv .venv" in calls
    assert installed_by(calls) == ["."]

"""make dist: build the sdist and the wheel, check what they hold, and use the wheel where nothing else of tiledsl is.

    python -m tests.packaging.dist FOLDER [--tools PYTHON] [--try PIP-ARGUMENTS...]

Both files depend on the checked-out files and the time of the last commit alone: two builds give the same bytes.
`--tools` names an interpreter with twine; `--try` makes an environment, installs the wheel with its dependencies there
(`pip install WHEEL PIP-ARGUMENTS`), and runs the README's program from an empty folder.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Where the packages stand in a checkout, and where in a wheel.
FOLDERS = {"tiledsl": "tiledsl", "passes": "tiledsl/passes", "autotune": "tiledsl/autotuner"}
IN_SDIST = (
    "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in", "pyproject.toml", "docs/README.md", "examples/gemm_lazy.py"
)  # fmt: skip


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """The standard output of a command that must succeed. It finds tiledsl only where it is installed."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    shown = subprocess.run(command, cwd=cwd, env={**environment, **(env or {})}, capture_output=True, text=True)
    assert shown.returncode == 0, f"{command}\n{shown.stdout}\n{shown.stderr}"
    return shown.stdout


def tracked() -> list[str]:
    """The files of the checkout that git does not ignore, or of a copy without git all; symlinks included."""
    if (ROOT / ".git").exists():
        listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
        return [name for name in listed if name and (ROOT / name).exists()]
    tops = [*FOLDERS, "docs", "examples"]
    found = [*ROOT.glob("*.*"), ROOT / "LICENSE", *(path for top in tops for path in (ROOT / top).rglob("*"))]
    links = [ROOT / "tiledsl" / "passes", ROOT / "tiledsl" / "autotuner"]
    files = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    return [path.relative_to(ROOT).as_posix() for path in [*files, *links]]


def commit_time() -> str:
    """When the last commit was made, in seconds since 1970: the time of all files in what is built."""
    if (ROOT / ".git").exists():
        return run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    return str(int((ROOT / "pyproject.toml").stat().st_mtime))


def copy_checkout(folder: Path) -> Path:
    """A copy of the tracked files: building leaves nothing in the checkout and takes no stale build/ from it."""
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def build(source: Path, kind: str, out: Path, epoch: str) -> Path:
    """The wheel or the sdist of a source tree, whose files all have the time `epoch`."""
    out.mkdir(parents=True)
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, source]
    run(*command, cwd=out, env={"SOURCE_DATE_EPOCH": epoch})
    (made,) = out.iterdir()
    if kind == "sdist":
        same_each_time(made, int(epoch))
    return made


def same_each_time(sdist: Path, epoch: int) -> None:
    """Write an archive anew without what differs from build to build: order, owners, rights and times."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, epoch
            plain.mode = 0o755 if member.isdir() else 0o644
            new.addfile(plain, old.extractfile(member) if member.isfile() else None)
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=epoch) as zipped:
        zipped.write(packed.getvalue())


def unpacked(sdist: Path, folder: Path) -> Path:
    """The source tree in an sdist."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def wanted_in_wheel() -> set[str]:
    """All files in the folders of the packages, by the names that they have in a wheel."""
    names = set()
    for name in tracked():
        folder, _, inner = name.partition("/")
        if folder in FOLDERS and not (ROOT / name).is_symlink():
            names.add(f"{FOLDERS[folder]}/{inner}")
    return names


def check_wheel(wheel: Path) -> None:
    """The packages and their record are in it, and nothing else is."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    (record,) = {name.split("/")[0] for name in names} - {"tiledsl"}
    assert re.fullmatch(r"tiledsl-[\w.]+\.dist-info", record), record
    assert {f"{record}/{name}" for name in ("METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE")} <= names
    found = {name for name in names if name.startswith("tiledsl/")}
    assert found == wanted_in_wheel(), sorted(found ^ wanted_in_wheel())


def check_sdist(source: Path) -> None:
    """What builds the wheel is in it, what its README leads to, and none of the tests."""
    names = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    packages = {name for name in tracked() if name.split("/")[0] in FOLDERS and not (ROOT / name).is_symlink()}
    missing = (packages | {*IN_SDIST}) - names
    assert not missing, sorted(missing)
    top = {name.split("/")[0] for name in names if "/" in name}
    assert top == {"tiledsl", "passes", "autotune", "docs", "examples", "tiledsl.egg-info"}, top
    rubbish = [name for name in names if re.search(r"__pycache__|\.py[co]$|\.orig$|~$", name)]
    assert not rubbish, rubbish


def use(wheel: Path, folder: Path, pip_arguments: list[str]) -> str:
    """Install the wheel with all that it needs, and run the README's program there. Returns what that prints."""
    run(sys.executable, "-m", "venv", "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel, *pip_arguments, cwd=folder)
    run(python, "-m", "pip", "check", "--disable-pip-version-check", cwd=folder)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    (elsewhere / "matmul.py").write_text(program[1])
    private = {"TILEDSL_CACHE_DIR": str(folder / "cache")}
    printed = run(python, "matmul.py", cwd=elsewhere, env=private)
    assert "@triton.jit" in printed and (elsewhere / "matmul_relu.py").is_file(), printed
    assert "tiledsl" in run(python.with_name("tiledsl"), "--version", cwd=elsewhere)
    return printed


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("out", type=Path)
    options.add_argument("--tools")
    options.add_argument("--try", nargs=argparse.REMAINDER, dest="pip_arguments")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, epoch = Path(name), commit_time()
        checkout = copy_checkout(folder / "checkout")
        sdist = build(checkout, "sdist", folder / "sdist", epoch)
        again = build(copy_checkout(folder / "again"), "sdist", folder / "sdist-again", epoch)
        assert sdist.read_bytes() == again.read_bytes(), "two builds of the sdist differ"
        source = unpacked(sdist, folder / "unpacked")
        check_sdist(source)
        wheel = build(source, "wheel", folder / "wheel", epoch)
        check_wheel(wheel)
        direct = build(checkout, "wheel", folder / "wheel-of-checkout", epoch)
        assert wheel.read_bytes() == direct.read_bytes(), "the wheel of the sdist differs from that of the checkout"
        if given.tools:
            run(given.tools, "-m", "twine", "check", "--strict", sdist, wheel, cwd=folder)
        if given.pip_arguments is not None:
            use(wheel, folder, given.pip_arguments)
        given.out.mkdir(parents=True, exist_ok=True)
        for made in (sdist, wheel):
            shutil.copy(made, given.out)
            print(hashlib.sha256(made.read_bytes()).hexdigest(), given.out / made.name)


if __name__ == "__main__":
    main()

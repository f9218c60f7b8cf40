"""What `tiledsl doctor` looks at without running a kernel: versions, folders, tools, driver, clock; and ways out."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tiledsl.files import make_private
from tiledsl.runtime.hazards import HAZARDS
from tiledsl.settings import current

# The oldest versions that pyproject.toml allows; tests compare them. Those of torch and Triton have lines of their own.
LEAST = {
    "click": (8, 1), "filelock": (3, 12), "joblib": (1, 4), "lark": (1, 1, 7), "networkx": (3, 1), "numpy": (1, 26),
    "platformdirs": (4,), "rich": (13,), "torch": (2, 10), "triton": (3, 6),
}  # fmt: skip
# What pyproject.toml calls optional for users: the packages with their oldest versions, and what they are for.
EXTRAS: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "verify": ({"z3-solver": (4, 12)}, "proofs in certificates"),
    "report": ({"jinja2": (3, 1), "plotly": (5, 15)}, "pages of HTML"),
}
LEAST_FREE = 1 << 30  # bytes; a tuning keeps some hundred kernels of a MiB or less, and Triton as many
STEADY = 0.9  # of the highest clock
CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu (without a GPU), pip install torch"
NVIDIA = Path("/proc/driver/nvidia/version")  # there where the driver is loaded


@dataclass(frozen=True)
class Finding:
    """One line of the report. `good` is None for a fact that nothing depends on here; `do` is what helps, if any is
    needed."""

    what: str
    good: bool | None
    detail: str
    do: str = ""


def packages() -> Iterator[Finding]:
    """The libraries: torch and Triton, each with its version, and all that is wrong with others."""
    for package in ("torch", "triton"):
        yield package_version(package)
    found = [package_version(package) for package in LEAST if package not in ("torch", "triton")]
    wrong = [finding for finding in found if not finding.good]
    yield from wrong
    if not wrong:
        yield Finding("other packages", True, ", ".join(f"{each.what} {each.detail}" for each in found))


def extras() -> Iterator[Finding]:
    """What users may install beside, what it gives, and how."""
    for extra, (needs, gives) in EXTRAS.items():
        found = {package: package_version(package, least) for package, least in needs.items()}
        there = all(each.good for each in found.values())
        shown = ", ".join(f"{package} {each.detail}" for package, each in found.items())
        do = "" if there else f"pip install 'tiledsl[{extra}]', if you want them"
        yield Finding(f"extra: {extra}", True if there else None, f"{shown}: {gives}", do)


def package_version(package: str, oldest: tuple[int, ...] = ()) -> Finding:
    """A package's version, and whether it is new enough: as `oldest` or LEAST says."""
    oldest = oldest or LEAST[package]
    least = ".".join(map(str, oldest))
    do = f"pip install '{package}>={least}'"
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        return Finding(package, False, "missing", CPU_TORCH if package == "torch" else do)
    if numbers(found) < oldest:
        return Finding(package, False, f"{found}, older than {least}", do)
    other = wanted_triton() if package == "triton" else ""
    if other and other != found:
        return Finding(
            package, True, f"{found}; torch comes with {other}", f"pip install triton=={other}, if torch.compile fails"
        )
    return Finding(package, True, found)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def wanted_triton() -> str:
    """The version of Triton that the installed torch names; "" if it names none, as builds without CUDA."""
    try:
        needs = metadata.requires("torch") or []
    except metadata.PackageNotFoundError:
        return ""
    return next((found[1] for each in needs if (found := re.match(r"triton==([\w.]+)", each))), "")


def mistakes() -> Iterator[Finding]:
    """Which mistakes of this Triton and its ptxas kernels are kept away from."""
    for tool, version, newest in (("triton", triton_version(), "Triton 3.9"), ("ptxas", ptxas_version(), "ptxas 13.0")):
        known = [each.name for each in HAZARDS if version and concerns(each.versions, tool, version)]
        if known:
            detail = f"kernels keep away from those of {tool} {version}, or are refused with a message"
            yield Finding("compiler mistakes", True, f"{detail}: {', '.join(known)}; {newest} has fewer")


def concerns(versions: str, tool: str, version: str) -> bool:
    """Whether a hazard's versions ("3.6, 3.7", "ptxas 12.8, 12.9", "ptxas up to 13.4") are this one's. Not "all": then
    no version helps."""
    of_ptxas = versions.startswith("ptxas")
    if versions == "all" or of_ptxas != (tool == "ptxas"):
        return False
    named = re.findall(r"\d+\.\d+", versions)
    if "up to" in versions:
        return numbers(version)[:2] <= numbers(named[-1])
    return ".".join(map(str, numbers(version)[:2])) in named


def triton_version() -> str:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""


def ptxas_version() -> str:
    """Of the ptxas that Triton calls for GPUs before Blackwell; "" without one."""
    try:
        from triton import knobs

        return str(knobs.nvidia.ptxas.version)
    except Exception:  # Triton is missing or broken, or its tool is: the report says so elsewhere
        return ""


def ptxas(has_gpu: bool) -> Finding:
    """The assembler for NVIDIA's GPUs, which Triton brings."""
    version = ptxas_version()
    do = "reinstall triton (pip install --force-reinstall --no-deps triton), or set TRITON_PTXAS_PATH"
    if version:
        return Finding("ptxas", True, version)
    return Finding("ptxas", False if has_gpu else None, "none that runs", do)


def folders() -> Iterator[Finding]:
    """Where tiledsl and Triton keep kernels: to be written, with room."""
    triton = os.environ.get("TRITON_CACHE_DIR") or Path(
        os.environ.get("TRITON_HOME") or Path.home(), ".triton", "cache"
    )
    for what, folder, setting in (
        ("cache folder", Path(current().cache_dir), "TILEDSL_CACHE_DIR"),
        ("Triton's cache", Path(triton), "TRITON_CACHE_DIR"),
        ("temporary files", Path(tempfile.gettempdir()), "TMPDIR"),
    ):
        yield folder_state(what, folder, setting)


def folder_state(what: str, folder: Path, setting: str) -> Finding:
    try:
        make_private(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(
            what, False, f"{folder} cannot be written: {error.strerror}", f"set {setting} to a folder of yours"
        )
    if free < LEAST_FREE:
        detail = f"{folder} has {free >> 20} MiB left, less than {LEAST_FREE >> 20}"
        return Finding(what, False, detail, f"tiledsl cache clear, or set {setting} to a folder on another disk")
    return Finding(what, True, str(folder))


def missing_gpu() -> Finding:
    """Why torch has no GPU: there is none, or torch, the driver or the environment is in the way."""
    import torch

    if not NVIDIA.exists():
        return Finding("GPU", None, "none: kernels are interpreted, and compiled for other machines")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and not hidden.strip(" -1,"):
        return Finding("GPU", False, f"hidden by CUDA_VISIBLE_DEVICES={hidden!r}", "unset CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None:
        detail = f"NVIDIA's driver is loaded, but torch {torch.__version__} has no CUDA"
        return Finding("GPU", False, detail, "install torch with CUDA: https://pytorch.org/get-started/locally/")
    return driver_state(driver_cuda(), torch.version.cuda) or Finding(
        "GPU",
        False,
        "NVIDIA's driver is loaded, but torch finds no GPU",
        "see nvidia-smi, and the permissions of /dev/nvidia*",
    )


def driver_state(driver: str, toolkit: str) -> Finding | None:
    """What is wrong if torch's CUDA is of a later major version than the driver's; minor ones are compatible."""
    if not driver or numbers(driver)[:1] >= numbers(toolkit)[:1]:
        return None
    detail = f"the driver is of CUDA {driver}, older than torch's CUDA {toolkit}"
    return Finding("GPU", False, detail, f"update the driver, or install torch for CUDA {numbers(driver)[0]}")


def driver_cuda() -> str:
    """The newest CUDA that the driver knows, as "12.8"; "" without a driver."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
            return ""
    except (OSError, AttributeError):
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def clock(read: Callable[[], tuple[int, int]] | None, work: Callable[[], object]) -> Finding:
    """Whether the GPU keeps its clock under load, so that times can be compared. `read` gives it and the highest."""
    if read is None:
        return Finding("clock", None, "not known: NVIDIA's management library is missing")
    seen = []
    for _ in range(20):
        work()
        now, most = read()
        seen.append(now)
    low, high = min(seen[5:]), max(seen[5:])
    detail = f"{low} to {high} MHz under load, of {most} at most"
    if low >= STEADY * most:
        return Finding("clock", True, detail)
    do = "compare times of one process only, or lock the clock (nvidia-smi -lgc, as root)"
    return Finding("clock", None, detail + ": times vary", do)

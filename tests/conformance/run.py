"""Run TileLang's own example scripts under tiledsl, out of a copy of its repository, and print a table.

    python tests/conformance/run.py FOLDER [--only PATTERN] [--list A|B] [--jobs N] [--timeout SECONDS] [--json FILE]
        [--verify]

FOLDER is the repository, or its examples/. With --verify every kernel that a script calls gets a certificate; a script
fails if one of these does. The exit status is 0 if no script failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

from scripts import SCRIPTS, Script  # noqa: E402

from tiledsl.child_processes import reason_of  # noqa: E402

_FRAME = re.compile(r'^\s*File "(.+)", line \d+', re.MULTILINE)
# What torch says of a GPU that has no memory left: other scripts may have it.
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA error: out of memory")
# What scripts print, and then exit with 0, when their result differs from their reference.
_COMPLAINT = re.compile(r"✗|❌|\bFAILED\b|\bmismatch\b|WARNING: .* Error:|not match", re.IGNORECASE)


@dataclass(frozen=True)
class Outcome:
    """What became of a script. `status` is passed, runs (it compares nothing), failed, timeout, needs or missing."""

    script: str
    list: str
    status: str
    seconds: float
    reason: str = ""

    def line(self, width: int) -> str:
        return f"{self.script:{width}}  {self.status:8}{self.seconds:7.1f} s  {self.reason[:160]}".rstrip()


def has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def command_of(script: Script, examples: Path, gpu: bool, verify: bool) -> list[str]:
    """The command that runs a script: `tiledsl run` as it is on a GPU, with smaller sizes elsewhere."""
    path = str(examples / script.path)
    entry = ["--entry", script.entry] if script.entry else []
    if gpu and not entry and not verify:
        return [sys.executable, "-m", "tiledsl", "run", path]
    scaled = [] if gpu else [word for pair in script.sizes for word in ("--size", *pair)]
    arguments = [] if gpu else shlex.split(script.arguments)
    options = [*scaled, *entry, *(["--verify"] if verify else [])]
    return [sys.executable, str(HERE / "one_script.py"), *options, path, *arguments]


def is_missing(need: str) -> bool:
    """Whether a needed package is absent, or too new: "name" or "name<version"."""
    name, bound, version = need.partition("<")
    if importlib.util.find_spec(name) is None:
        return True
    if not bound:
        return False

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", text)[:2])

    return numbers(metadata.version(name)) >= numbers(version)


def unsuited(needs: Sequence[str], printed: str) -> str:
    """The needed package whose own code raised the last error, with its version; "" if tiledsl or the script did.

    Its functions take other arguments than when the script was written: nothing was said of a kernel of ours.
    """
    frames = [Path(each) for each in _FRAME.findall(printed.rpartition("Traceback (most recent call last)")[2])]
    ours = [HERE.parent.parent / each for each in ("tiledsl", "passes", "autotune")]
    for name in (need.partition("<")[0] for need in needs):
        spec = importlib.util.find_spec(name)
        folders = [Path(each) for each in (spec and spec.submodule_search_locations) or ()]
        inside = [at for at, frame in enumerate(frames) if any(map(frame.is_relative_to, folders))]
        if inside and not any(frame.is_relative_to(each) for frame in frames[inside[-1] :] for each in ours):
            (package, *_) = metadata.packages_distributions().get(name, [name])
            return f"{name} other than {metadata.version(package)}"
    return ""


def run(script: Script, examples: Path, gpu: bool, timeout: float, logs: Path | None, verify: bool = False) -> Outcome:
    """Run one script in a process of its own."""

    def outcome(status: str, reason: str = "") -> Outcome:
        return Outcome(script.path, script.list, status, time.perf_counter() - start, reason)

    start = time.perf_counter()
    path = examples / script.path
    if not path.is_file():
        return outcome("missing", "there is no such file")
    absent = [need for need in script.needs if is_missing(need)]
    if absent:
        return outcome("needs", f"needs {', '.join(absent)}")
    paths = [str(HERE.parent.parent), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.Popen(
        command_of(script, examples, gpu, verify), cwd=path.parent, env=environment, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=timeout)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        printed, _ = process.communicate()
        status = 124
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        (logs / (script.name.replace("/", "-") + ".log")).write_text(printed, encoding="utf-8")
    if status == 124:
        return outcome("timeout", f"longer than {timeout:g} s")
    if status != 0:
        reason = reason_of(printed)
        absent = re.findall(r"ModuleNotFoundError: No module named '((?!tilelang|tvm|tiledsl)\w+)", reason)
        is_full = _OUT_OF_MEMORY.search(reason)
        other = absent[0] if absent else "" if is_full else unsuited(script.needs, printed)
        if other:
            return outcome("needs", f"needs {other}" + ("" if absent else f": {reason}"))
        return outcome("failed", reason or f"exit status {status}")
    certificates = re.findall(r"^certificate of .*: (\d+) proved, (\d+) tested, (\d+) unknown", printed, re.MULTILINE)
    own = [line for line in printed.splitlines() if not line.lstrip().startswith("certificate")]
    complaint = next((line for line in own if _COMPLAINT.search(line)), None)
    if complaint is not None:
        return outcome("failed", f"it prints: {complaint.strip()}")
    said = [f"{len(certificates)} certificates"] if verify else []
    said += [f"{unknown} checks unknown" for unknown in [sum(int(each[2]) for each in certificates)] if unknown]
    return outcome("runs" if script.prints_only else "passed", ", ".join(said))


def selected(options: argparse.Namespace) -> Iterator[Script]:
    for script in SCRIPTS:
        if options.list in (None, script.list) and re.search(options.only or "", script.path):
            yield script


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="a copy of TileLang's repository")
    parser.add_argument("--only", default="", metavar="PATTERN", help="scripts whose path matches this pattern")
    parser.add_argument(
        "--list", choices=["A", "B"], help="A: core passes only; B: a further pass each (default: both)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="scripts at a time (default 1)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a script (default 300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes to this file")
    parser.add_argument("--verify", action="store_true", help="a certificate for each kernel that a script calls")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="write what each script prints to this folder")
    options = parser.parse_args()
    examples = options.folder / "examples" if (options.folder / "examples").is_dir() else options.folder
    examples = examples.resolve()
    chosen = list(selected(options))
    gpu = has_gpu()
    print(f"{len(chosen)} scripts of {examples}, {'on the GPU' if gpu else 'scaled down, in the interpreter'}")
    width = max((len(script.path) for script in chosen), default=0)

    def outcome(script: Script) -> Outcome:
        return run(script, examples, gpu, options.timeout, options.logs, options.verify)

    outcomes, again = [], []
    with ThreadPoolExecutor(options.jobs) as pool:
        for script, found in zip(chosen, pool.map(outcome, chosen)):
            if options.jobs > 1 and found.status == "failed" and _OUT_OF_MEMORY.search(found.reason):
                again.append(script)
            else:
                outcomes.append(found)
                print(found.line(width), flush=True)
    for script in again:  # alone, with all of the GPU
        outcomes.append(outcome(script))
        print(outcomes[-1].line(width), flush=True)
    counts = Counter(found.status for found in outcomes)
    print(", ".join(f"{count} {status}" for status, count in counts.most_common()))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(found) for found in outcomes], indent=1), encoding="utf-8")
    return 1 if counts["failed"] or counts["timeout"] else 0


if __name__ == "__main__":
    sys.exit(main())

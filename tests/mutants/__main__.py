"""make mutants: does a test fail when a line of the compiler or the tuner means something else?

A sample of small changes (mutations.py), the same one for the same seed, each on a copy of the checkout. The tests that
run a changed line run until one fails, the fastest and most specific first; those that only hold a digest of what
comes out (tests/golden) last, and what they alone notice is counted apart. What survives is printed; survivors that
change no behaviour are listed with the reason in equivalent.txt. Verdicts are kept (verdicts.py): a run that was
stopped goes on, and a larger sample of the same seed runs only what is new in it. Neither mutmut nor
cosmic-ray takes a sample by seed, or runs mutants in forks of a process that has torch.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import functools
import gzip
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.mutations import Mutant, mutants_of, sample, strata
from tests.mutants.verdicts import Verdicts
from tests.mutants.warm import ROOT, Job, Outcome, Pool, Test

CHANGED = (
    "passes/*.py", "passes/*/*.py", "tiledsl/analysis/*.py", "tiledsl/analysis/gluon/*.py",
    "tiledsl/frontend/*.py", "tiledsl/ir/verifier.py", "tiledsl/runtime/launch*.py", "tiledsl/kernels/stored.py",
    "tiledsl/language/linear.py", "tiledsl/language/negative_indices.py", "tiledsl/files.py", "autotune/engine.py",
    "autotune/run.py", "autotune/selection.py", "autotune/verifying/*.py", "autotune/search/*.py",
    "autotune/storage/*.py", "autotune/predicting/prune.py",
)  # fmt: skip
NO_TESTS = ("tests/gpu", "tests/packaging", "tests/conformance", "tests/benchmarks", "tests/mutants")
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
DIGESTS = "tests/golden/"
MAP = ROOT / ".mutants"
FIRST_SECONDS = 3.0  # of tests before the next ones are collected


def main() -> int:
    options = _options()
    sources = {file: (ROOT / file).read_bytes() for file in _changed_files()}
    everything = {mutant.key: mutant for file, source in sources.items() for mutant in mutants_of(file, source)}
    equivalent = read_equivalent(EQUIVALENT)
    stale = [key for key in equivalent if key not in everything]
    for file, function, before, after in stale:
        print(f"{EQUIVALENT.name}: there is no such mutant now: {file}: {function}\n- {before}\n+ {after}")
    if stale:
        return 2
    MAP.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tiledsl-mutants-", ignore_cleanup_errors=True) as folder:
        pool = Pool(options.workers, Path(folder))
        tests = refresh_map(pool, options.tests)
        if options.count == 0:
            return 0
        chosen = [each for each in everything.values() if _matches(each, options.only) and each.key not in equivalent]
        if options.again:
            survived = printed_mutants(options.again.read_text())
            chosen = [each for each in chosen if each.key in survived]
        folders = strata(chosen, lambda file: str(Path(file).parent))
        mutants = list(sample(folders, options.count, options.seed, sources))
        verdicts = Verdicts(MAP / "verdicts", ROOT)
        results = _run(pool, mutants, sources, tests, Look(options.seconds), verdicts)
        survived = [result.mutant for result in results if result.covering and not result.killed_by]
        looked_at_again = _run(pool, survived, sources, tests, Look(options.longer, options.seconds), verdicts)
        results = [result for result in results if result.mutant not in survived] + looked_at_again
    return _report(results, sources, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--count", type=int, default=450, help="0 only brings the map of coverage up to date")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="*", help="globs of paths, or of path:function, with commas between")
    parser.add_argument("--tests", default="*", help="globs of the test files that run")
    parser.add_argument("--again", type=Path, help="only what survived in an earlier run, whose output is this file")
    parser.add_argument("--seconds", type=float, default=40, help="of tests for a mutant, as long as they took before")
    parser.add_argument("--longer", type=float, default=120, help="of further tests for a mutant that survives these")
    parser.add_argument("--verbose", action="store_true", help="say what killed each")
    return parser.parse_args()


def _matches(mutant: Mutant, only: str) -> bool:
    return any(fnmatch.fnmatch(f"{mutant.file}:{mutant.function}", f"{each}*") for each in only.split(","))


def printed_mutants(text: str) -> set[tuple[str, str, str, str]]:
    """The keys of the survivors that a run has printed."""
    pattern = r"^(\S+\.py):\d+: (.*)\n- (.*)\n\+ (.*)\n  (?:survived|no test)"
    return {(file, function, before, after) for file, function, before, after in re.findall(pattern, text, re.M)}


def _changed_files() -> list[str]:
    files = {str(path.relative_to(ROOT)) for pattern in CHANGED for path in ROOT.glob(pattern)}
    return sorted(files)


def read_equivalent(path: Path) -> dict[tuple[str, str, str, str], str]:
    """The reviewed survivors and why they change nothing: blocks of `file: function`, `- before`, `+ after`, reason."""
    found = {}
    for block in path.read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            place, before, after, *reason = lines
            file, _, function = place.partition(":")
            is_block = before.startswith("- ") and after.startswith("+ ") and reason
            assert is_block and not any(each.startswith(("- ", "+ ")) for each in reason), (
                f"{path.name}: not a block:\n{block}"
            )
            found[file, function.strip(), before[2:], after[2:]] = " ".join(reason)
    return found


# Which tests run which lines


@dataclass
class Tests:
    seconds: dict[str, float] = field(default_factory=dict)
    masks: dict[str, dict[str, int]] = field(default_factory=dict)  # by file and test: a bit for each line
    shared: dict[str, dict[str, int]] = field(default_factory=dict)  # by file and file of tests: of set-ups
    files: list[str] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)  # lines that a test runs, of all files

    def covering(self, mutant: Mutant) -> list[Test]:
        """The tests that run one of the mutant's lines, those first that run much of its file for their time, the files
        of tests in turn; those that import what is changed take ten turns where others take one."""
        lines = sum(1 << line for line in mutant.covered_by)
        masks = self.masks.get(mutant.file, {})
        files = {file for file, mask in self.shared.get(mutant.file, {}).items() if mask & lines}
        found = [name for name, mask in masks.items() if mask & lines]
        if not found and not files:  # it may run in processes that tests start
            files = {file for file in self.files if _names(file, mutant)}
        found += [name for name in self.seconds if name.partition("::")[0] in files and name not in found]

        def cost(name: str) -> float:
            named = _imports(name.partition("::")[0], mutant.file)
            share = (1 + masks.get(name, 0).bit_count()) / (100 + self.totals[name])
            return (0.03 + self.seconds[name]) / share / (10 if named else 1)

        found.sort(key=cost)
        # Files take turns by time, not by number: of fast cases many run before the second slow test of another file.
        spent: dict[str, float] = defaultdict(float)
        turn = {}
        for name in found:
            spent[name.partition("::")[0]] += cost(name)
            turn[name] = spent[name.partition("::")[0]]
        found.sort(key=lambda name: (name.startswith(DIGESTS), turn[name]))
        return [Test(name, self.seconds[name]) for name in found]


def _names(file: str, mutant: Mutant) -> bool:
    """Whether a file of tests has the name of what is changed."""
    function = mutant.function.rpartition(".")[2]
    return bool(function and re.search(rf"\b{function}\b", _text(file))) or _imports(file, mutant.file)


@functools.cache
def _imports(file: str, changed: str) -> bool:
    module = changed.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return module.replace("autotune.", "autotuner.") in _text(file)


@functools.cache
def _text(file: str) -> str:
    return (ROOT / file).read_text()


def refresh_map(pool: Pool, pattern: str) -> Tests:
    """The map of coverage, made anew for files of tests that have changed since."""
    files = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/**/test_*.py"))]
    files = [
        file
        for file in files
        if not file.startswith(NO_TESTS) and any(fnmatch.fnmatch(file, each) for each in pattern.split(","))
    ]
    stale = [file for file in files if not _stored(file).exists()]
    if stale:
        _make_parse_table(pool)
    begun = time.monotonic()

    def done(job: Job, outcome: Outcome) -> None:
        if not outcome.answer.get("tests"):  # also where something is not installed: not to be remembered
            print(f"no test of {job.files[0]} ran:\n{outcome.printed[-3000:]}", file=sys.stderr)
            return
        failed = [name for name, test in outcome.answer["tests"].items() if not test["passed"] and "[" not in name]
        answer = {**outcome.answer, "sources": _source_texts(outcome.answer)}
        for old in MAP.glob(_stored(job.files[0]).name.rsplit("-", 1)[0] + "-*.gz"):
            old.unlink()
        _stored(job.files[0]).write_bytes(gzip.compress(json.dumps(answer).encode(), 3))
        print(
            f"{time.monotonic() - begun:6.1f} s  {job.files[0]}" + (f"  (not passed: {failed})" if failed else ""),
            flush=True,
        )

    sizes = {file: (ROOT / file).stat().st_size for file in stale}
    covered = tuple(_changed_files())
    pool.run([Job(files=(file,), covered=covered) for file in sorted(stale, key=sizes.__getitem__, reverse=True)], done)
    tests = Tests(files=files)
    for file in files:
        if _stored(file).exists():
            _add_file(tests, file, json.loads(gzip.decompress(_stored(file).read_bytes())))
    return tests


def _stored(file: str) -> Path:
    digest = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]
    return MAP / f"{file.replace('/', '.')}-{digest}.gz"


def _source_texts(answer: dict[str, Any]) -> dict[str, str]:
    """Texts are stored once, by their hash: lines of the map are theirs."""
    hashes = {}
    for file in {file for files in answer["lines"].values() for file in files}:
        text = (ROOT / file).read_bytes()
        hashes[file] = hashlib.sha256(text).hexdigest()[:16]
        (MAP / f"text-{hashes[file]}").write_bytes(text)
    return hashes


def _add_file(tests: Tests, file: str, answer: dict[str, Any]) -> None:
    passed = {name: test["seconds"] for name, test in answer["tests"].items() if test["passed"]}
    tests.seconds.update(passed)
    for context, files in answer["lines"].items():
        for source, text in files.items():
            if not (ROOT / source).exists():
                continue
            mask = _moved(int(text, 16), source, answer["sources"][source])
            if context == "set-up":
                tests.shared.setdefault(source, {})[file] = mask
            elif context in passed:
                tests.masks.setdefault(source, {})[context] = mask
                tests.totals[context] += mask.bit_count()


def _moved(mask: int, file: str, digest: str) -> int:
    """The lines of an older text as lines of today's."""
    moves = _moves(file, digest)
    if moves is None:
        return mask
    return sum(1 << line for line, old in enumerate(moves, 1) if mask & old)


@functools.cache
def _moves(file: str, digest: str) -> list[int] | None:
    text = (ROOT / file).read_bytes()
    if hashlib.sha256(text).hexdigest()[:16] == digest:
        return None
    return moved_lines((MAP / f"text-{digest}").read_text().splitlines(), text.decode().splitlines())


def moved_lines(old: list[str], new: list[str]) -> list[int]:
    """For each new line a bit for each old one that it stands for: a changed line stands for all that it may have been
    written for, and for their neighbours, so that a test of what is around it runs."""
    moves = []
    for tag, first, last, start, end in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if tag == "equal":
            moves += [1 << line for line in range(first + 1, last + 1)]
        else:
            moves += [sum(1 << line for line in range(first, last + 2))] * (end - start)
    return moves


def _make_parse_table(pool: Pool) -> None:
    if not (MAP / "grammar").exists():
        import subprocess

        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "TILEDSL_CACHE_DIR": str(MAP), "PYTHONPATH": paths}
        program = "from tiledsl.frontend import parser; parser.parse_module('x = 1')"
        subprocess.run([sys.executable, "-c", program], env=environment, check=True, cwd=ROOT)


# Running


@dataclass
class Result:
    mutant: Mutant
    covering: int
    killed_by: str
    seconds: float


@dataclass(frozen=True)
class Look:
    """Tests of so many seconds for each mutant, after those of an earlier look."""

    seconds: float
    earlier: float = 0.0

    def choose(self, covering: list[Test], left_out: set[str]) -> list[Test]:
        seen = set(Look(self.earlier).choose(covering, left_out)) if self.earlier else set()
        chosen = []
        left = {True: self.seconds / 4, False: self.seconds}
        for test in covering:
            digests = test.name.startswith(DIGESTS)
            if test.name not in left_out and test not in seen and test.seconds <= left[digests]:
                chosen.append(test)
                left[digests] -= test.seconds
        return chosen


def _run(
    pool: Pool, mutants: list[Mutant], sources: dict[str, bytes], tests: Tests, look: Look, verdicts: Verdicts
) -> list[Result]:
    results: list[Result] = []
    unsteady: set[str] = set()
    waiting = mutants
    while waiting:
        made = _run_once(pool, waiting, sources, tests, look, unsteady, verdicts)
        killers = verdicts.not_steady({result.killed_by for result in made} & tests.seconds.keys())
        failing = _failing_without(pool, killers, tests)
        verdicts.keep_steady(killers - failing)
        unsteady |= failing
        waiting = [result.mutant for result in made if result.killed_by in failing]
        results += [result for result in made if result.killed_by not in failing]
    if unsteady:
        print(f"these fail without a change too, and were left out: {sorted(unsteady)}")
    return results


def _run_once(
    pool: Pool,
    mutants: list[Mutant],
    sources: dict[str, bytes],
    tests: Tests,
    look: Look,
    left_out: set[str],
    verdicts: Verdicts,
) -> list[Result]:
    results: list[Result] = []
    jobs: dict[int, tuple[Mutant, list[Test], float]] = {}
    queue = []
    survives = "survived another" if look.earlier else "not noticed yet by"
    for mutant in mutants:
        chosen = look.choose(tests.covering(mutant), left_out)
        if not chosen:
            results.append(Result(mutant, 0, "", 0.0))
            none = "survived, for no further test" if look.earlier else "no test"
            print(f"{_diff(mutant, sources)}  {none} runs this line\n", flush=True)
            continue
        known = verdicts.of(mutant, [test.name for test in chosen], tests.seconds.keys() - left_out)
        if known is not None:
            results.append(Result(mutant, len(chosen), known, 0.0))
            if not known:
                print(f"{_diff(mutant, sources)}  {survives} {len(chosen)} tests\n", flush=True)
            continue
        job = Job(_runs(chosen), edit=(mutant.file, mutant.apply(sources[mutant.file])))
        job.limit = 60 + 5 * sum(test.seconds for test in chosen)
        jobs[id(job)] = mutant, chosen, sum(test.seconds for test in chosen)
        queue.append(job)
    if queue:
        pool.compile_tests({test.name.partition("::")[0] for _, chosen, _ in jobs.values() for test in chosen})
    begun = time.monotonic()

    def done(job: Job, outcome: Outcome) -> None:
        mutant, chosen, _ = jobs[id(job)]
        assert outcome.status != 5 or outcome.started, f"no test was found for {mutant}:\n{outcome.printed}"
        results.append(Result(mutant, len(chosen), outcome.killed_by, time.monotonic() - begun))
        verdicts.keep(mutant, [test.name for test in chosen], outcome.killed_by)
        if not outcome.killed_by:
            print(f"{_diff(mutant, sources)}  {survives} {len(chosen)} tests\n", flush=True)
        if len(results) % 25 == 0:
            survived = sum(not each.killed_by for each in results)
            minutes = (time.monotonic() - begun) / 60
            print(f"{len(results)} of {len(mutants)} mutants, {survived} survived, {minutes:.1f} min\n", flush=True)

    pool.run(sorted(queue, key=lambda job: -jobs[id(job)][2]), done)
    return results


def _runs(chosen: list[Test]) -> list[list[Test]]:
    """Few tests before many files are collected; the tests of a file together."""
    first, rest, digests, seconds = [], [], [], 0.0
    for test in chosen:
        seconds += 0.03 + test.seconds
        if test.name.startswith(DIGESTS):
            digests.append(test)
        else:
            (first if seconds <= FIRST_SECONDS or not first else rest).append(test)
    return [_by_file(each) for each in (first, rest, digests) if each]


def _by_file(tests: list[Test]) -> list[Test]:
    files = list(dict.fromkeys(test.name.partition("::")[0] for test in tests))
    return sorted(tests, key=lambda test: files.index(test.name.partition("::")[0]))


def _failing_without(pool: Pool, names: set[str], tests: Tests) -> set[str]:
    """Of tests that killed a mutant those that fail without one too."""
    by_file: dict[str, list[Test]] = {}
    for name in sorted(names & tests.seconds.keys()):
        by_file.setdefault(name.partition("::")[0], []).append(Test(name, tests.seconds[name]))
    failing: set[str] = set()
    pool.run([Job([[test] for test in each]) for each in by_file.values()], lambda _, o: failing.update(o.failed))
    return failing


def _report(results: list[Result], sources: dict[str, bytes], options: argparse.Namespace) -> int:
    results.sort(key=lambda result: (result.mutant.file, result.mutant.start))
    survivors = [result for result in results if not result.killed_by]
    files = Counter(result.mutant.file for result in results)
    survived = Counter(result.mutant.file for result in survivors)
    if options.verbose:
        for result in results:
            if result.killed_by:
                print(f"{_diff(result.mutant, sources)}  killed by {result.killed_by}\n")
    width = max(map(len, files), default=0)
    for file, count in files.items():
        print(f"{file:{width}}  {count - survived[file]:4}/{count}")
    killed = len(results) - len(survivors)
    digests = sum(result.killed_by.startswith(DIGESTS) for result in results)
    print(
        f"killed {killed} of {len(results)} mutants ({killed / max(1, len(results)):.1%}), {digests} by {DIGESTS} alone"
    )
    return 0 if killed >= 0.95 * len(results) else 1


def _diff(mutant: Mutant, sources: dict[str, bytes]) -> str:
    line = sources[mutant.file].count(b"\n", 0, mutant.start) + 1
    return f"{mutant.file}:{line}: {mutant.function}\n- {mutant.before}\n+ {mutant.after}\n"


if __name__ == "__main__":
    sys.exit(main())

"""How many mistakes in passes a certificate notices: `python -m tests.certificate.pass_mutants COUNT [SEED] [FILE]`.

Mutants of passes/ and of the analyses that passes ask are drawn until COUNT of them have changed a kernel of examples/,
or made its lowering fail. Sources that differ in names and comments alone are the same. Each mutant is one of:

- caught by what `verify` looks at in passes and their result, or by the lowering itself;
- unchecked, where something is unknown;
- equivalent: the certificate proves the other kernel, and its text, executed, has the results of the text without the
  mistake, or of the program as it was written, bit by bit on all of INPUTS, and touches nothing outside of its tensors;
- missed: none of these, which is what must not be.

What is unchecked or missed is printed with what it changed. FILE gets a line of JSON for each.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import gc
import importlib.machinery
import io
import json
import os
import random
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch  # noqa: F401  (loaded once, before the forks)

from tests.mutants import mutations

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("passes", "tiledsl/analysis")
SECONDS = 180  # for one mutant
# The kernels: an example, its options beside the small sizes, the target.
GLUON = {"dim": 64, "queries": 256, "keys": 256, "block_M": 128, "block_N": 64, "causal": 1}
MORE = [("attention", GLUON, "cuda:90"), ("gemm_lazy", {"M": 300, "N": 256, "K": 256}, "cuda:90")]


def cases() -> list[tuple[str, dict[str, Any], str]]:
    from tests.support.example_kernels import NAMES

    return [*((name, {}, "cuda:90") for name in NAMES), *MORE]


def in_a_fork(function: Callable[[], Any]) -> Any:
    """What a function returns, as JSON has it, in a process of its own."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.close(read)
        signal.alarm(SECONDS)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                made = function()
        except BaseException as error:
            made = {"caught": f"{type(error).__name__}: {error}"[:200]}
        with os.fdopen(write, "w") as file:
            json.dump(made, file)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"caught": "the process ended"}


# Mutants in a process that has loaded everything


def functions() -> dict[str, list[FunctionType]]:
    """The functions of the compiler that are loaded, by file."""
    found = defaultdict(list)
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and any(
            folder in each.__code__.co_filename for folder in ("passes", "analysis")
        ):
            found[os.path.realpath(each.__code__.co_filename)].append(each)
    return found


def _changed(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The innermost functions of a text that differ from another text's. Raises ValueError if others do."""
    olds, news = ([each for each in code.co_consts if isinstance(each, CodeType)] for code in (old, new))
    rest = lambda code: (
        code.co_code, code.co_names, code.co_freevars, code.co_varnames,
        [(type(each), each) for each in code.co_consts if not isinstance(each, CodeType)],
    )  # fmt: skip
    if len(olds) == len(news) and rest(old) == rest(new):
        for pair in zip(olds, news, strict=True):
            yield from _changed(*pair)
        return
    yield old, new


def replace_code(path: Path, old: bytes, new: bytes, known: dict[str, list[FunctionType]]) -> bool:
    """Give loaded functions the code of another text for their file; False where that is not enough."""
    lines = lambda code: (code.co_qualname, code.co_firstlineno)
    replaced: dict[Any, CodeType] = {}
    before, after = (compile(text, str(path), "exec", dont_inherit=True) for text in (old, new))
    for was, now in _changed(before, after):
        outer = lines(was)
        while "<locals>" in was.co_qualname:  # a function in a function: the outer one makes it anew
            name = was.co_qualname.rpartition(".<locals>.")[0]
            was, now = (_named(code, name, outer[1]) for code in (before, after))
            if was is None or now is None:
                return False
        replaced[lines(was)] = now
    done = set()
    for each in known.get(str(path), ()):
        code = replaced.get(lines(each.__code__))
        if code is not None and code.co_freevars == each.__code__.co_freevars:
            each.__code__ = code
            done.add(lines(code))
    if len(done) < len(replaced):
        return False
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and (each.__module__ or "").startswith("tiledsl."):
            each.cache_clear()
    return True


def _named(code: CodeType, name: str, line: int) -> Any:
    """The last function of this name that begins before a line."""
    found = None
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_qualname == name and each.co_firstlineno <= line:
                found = each
            found = _named(each, name, line) or found
    return found


def load_anew(path: Path, text: bytes) -> None:
    """Forget what is loaded of the compiler, and let imports read another text for one file."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "tiledsl" or name.startswith("tests.support"):
            del sys.modules[name]
    read = importlib.machinery.SourceFileLoader.get_data

    def get_data(loader: Any, asked: str) -> bytes:
        if os.path.realpath(asked) == str(path):
            return text
        if asked.endswith(".pyc") and Path(asked).name.startswith(path.stem + "."):
            raise OSError("it is not the file's")
        return read(loader, asked)

    importlib.machinery.SourceFileLoader.get_data = get_data  # type: ignore[method-assign,assignment]


# What they do


def sources() -> Before:
    """Of the kernels of each case, the texts and what they do."""
    from tests.support.example_kernels import kernels_of

    found = []
    for name, options, target in cases():
        found.append([(kernel.source, meanings(kernel)) for kernel in kernels_of(name, target, **options)])
    return found


def structure(source: str) -> str:
    """A text without comments, and with names in the order in which they come."""
    names: dict[str, str] = {}

    class Renamed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            node.id = names.setdefault(node.id, f"name{len(names)}")
            return node

        def visit_arg(self, node: ast.arg) -> ast.arg:
            node.arg = names.setdefault(node.arg, f"name{len(names)}")
            return self.generic_visit(node)  # type: ignore[return-value]

    return ast.dump(Renamed().visit(ast.parse(source)))


def outcome(
    path: Path,
    old: bytes,
    new: bytes,
    before: list[list[tuple[str, list[Meaning]]]],
    known: dict[str, list[FunctionType]],
) -> dict[str, str]:
    """What becomes of a mutant: {"same": ""}, or another kind with a sentence."""
    if not replace_code(path, old, new, known):
        load_anew(path, new)
    from tests.support.example_kernels import kernels_of

    changed = []
    for (name, options, target), was in zip(cases(), before, strict=True):
        try:
            made = kernels_of(name, target, **options)
            changed += [(each, *of) for each, of in zip(made, was, strict=True) if each.source != of[0]]
        except Exception as error:
            return {"caught": f"{name}: lowering: {error}"[:200]}
    if not changed:
        return {"same": "the sources"}
    changed = [each for each in changed if structure(each[0].source) != structure(each[1])]
    if not changed:
        return {"same": "but for names"}
    changed.sort(key=lambda each: len(each[0].source))
    for kernel, _, _ in changed:
        if found := bad(kernel):
            return found
    for kernel, text, expected in changed:
        if differs := unlike(kernel, expected):
            return {"missed": f"{kernel.name} of {len(changed)}: {differs}\n{difference(text, kernel.source)}"}
    kernel, text, _ = changed[0]
    return {"equivalent": f"{kernel.name} of {len(changed)}\n{difference(text, kernel.source)}"}


def difference(old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
    return "\n".join(list(lines)[2:60])


# Sizes where they are dynamic, whether NaN, infinities and extreme integers are among the elements, a seed, and by how
# much floats are scaled.
INPUTS: tuple[tuple[Any, bool, int, float], ...] = (
    ("ragged", False, 1, 1.0), ("whole", True, 2, 1.0), ("single", False, 3, 1.0), ("ragged", True, 4, 1e4),
    ("ragged", False, 5, 1e-4),
)  # fmt: skip


@dataclass(frozen=True)
class Meaning:
    """What a kernel does on one of INPUTS."""

    name: str
    given: list[Any]
    is_odd: bool  # whether tensors begin at odd elements
    results: dict[str, list[Any]]  # of the program, and of the text without mistakes


Before = list[list[tuple[str, list[Meaning]]]]  # the texts of each case without mistakes, and what they do


def meanings(kernel: Any) -> list[Meaning]:
    """What a kernel does on INPUTS. Raises ExecutorError for what cannot be executed."""
    from tiledsl.certificate.exact import EXACT, unknowns
    from tiledsl.certificate.executor import Executor, ExecutorError
    from tiledsl.certificate.formats import rounded
    from tiledsl.certificate.remembered import Remembered
    from tiledsl.certificate.translation import ALL_INTEGERS, INTEGERS, MOST_ITERATIONS, arguments_for

    root = kernel._build()
    found = []
    for sizes, special, seed, scale in INPUTS:
        remembered = Remembered()
        for below in ALL_INTEGERS if special else INTEGERS:
            given = arguments_for(root, seed, below, sizes, special)
            for number, (each, value) in enumerate(zip(given, root.body.args, strict=False)):
                if isinstance(each, np.ndarray) and each.dtype == EXACT and scale != 1:
                    with np.errstate(all="ignore"):
                        each[...] = unknowns(rounded(each.real * scale, value.dtype), f"{number} {seed}")
            program = copies(given)
            executor = Executor(algebra(remembered))
            executor.zero, executor.in_lanes, executor.limit = True, True, MOST_ITERATIONS
            try:
                executor.run(root, program)
            except ExecutorError:
                if below == INTEGERS[-1] and not special and sizes != "single":
                    raise
                continue
            results = {"the program": program, "the text": executed(kernel, kernel.source, given, special, remembered)}
            found.append(Meaning(f"{sizes}, seed {seed}", given, special, results))
            break
    return found


def algebra(remembered: Any) -> Any:
    from tiledsl.certificate.exact import ExactAlgebra

    return ExactAlgebra(rounds32=True, remembered=remembered)


def executed(kernel: Any, source: str, given: list[Any], is_odd: bool, remembered: Any = None) -> list[Any]:
    """What a text leaves of arguments. Raises ExecutorError, as for an access outside of a tensor."""
    from tiledsl.certificate.source.module import SourceModule

    arrays = copies(given)
    loaded = SourceModule(source, algebra(remembered), is_odd)
    loaded.call(kernel.module.into, arrays, [each.dtype for each in kernel.params])
    return arrays


def unlike(kernel: Any, expected: list[Meaning]) -> str:
    """How the results of a kernel's text differ from those that are expected, "" if it has the bits of the program on
    all inputs, or those of the text without mistakes."""
    differences = {"the program": "", "the text": ""}
    for each in expected:
        try:
            made = executed(kernel, kernel.source, each.given, each.is_odd)
        except Exception as error:
            return f"{each.name}: {error}"
        for name, wanted in each.results.items():
            for param, a, b in zip(kernel.params, wanted, made, strict=True):
                count = np.count_nonzero(bits(a) != bits(b)) if isinstance(a, np.ndarray) else 0
                if count:
                    differences[name] = f"{count} elements of {param.name} are not those of {name} ({each.name})"
        if all(differences.values()):
            return "; ".join(differences.values())
    return ""


def copies(arguments: list[Any]) -> list[Any]:
    from tiledsl.certificate.translation import _copied

    return [_copied(each) if isinstance(each, np.ndarray) else each for each in arguments]


def bits(array: np.ndarray) -> np.ndarray:
    """What is compared of elements: floats bit by bit, but that all NaN are one."""
    if array.dtype.kind != "c":
        return array
    value = np.ascontiguousarray(array.real)
    return np.where(np.isnan(value), np.uint64(1), value.view(np.uint64))


def bad(kernel: Any) -> dict[str, str]:
    """What verify says against a kernel."""
    from tiledsl.certificate import certify, translation

    def found(checks: Any) -> dict[str, str]:
        for status, kind in (("failed", "caught"), ("unknown", "unchecked")):
            for each in checks:
                if each.status == status:
                    return {kind: f"{kernel.name}: {each.kind} {each.subject}: {each.detail}"[:300]}
        return {}

    return found(translation.check_translation(kernel)) or found(certify._bounds(kernel, 5.0))


def main(count: int, seed: int, out: str = os.devnull) -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = {path: path.read_bytes() for path in files}
    drawn = [(path, mutant) for path in files for mutant in mutations.mutants_of(path.name, texts[path])]
    random.Random(seed).shuffle(drawn)
    before = sources()
    known = functions()
    gc.freeze()
    counts: Counter[str] = Counter()
    with open(out, "a") as log:
        for path, mutant in drawn:
            if counts.total() - counts["same"] >= count:
                break
            if not mutations.compiles(mutant, texts[path]):
                continue
            new = mutant.apply(texts[path])
            made = in_a_fork(lambda path=path, new=new: outcome(path, texts[path], new, before, known))
            ((kind, detail),) = made.items()
            counts[kind] += 1
            place = f"{path.relative_to(ROOT)} {mutant.function}"
            log.write(json.dumps([kind, place, mutant.before, mutant.after, detail]) + "\n")
            log.flush()
            if kind in ("missed", "unchecked"):
                print(f"{kind}: {place}\n  {mutant.before}\n  {mutant.after}\n  {detail}", flush=True)
    print(", ".join(f"{number} {kind}" for kind, number in counts.items()))
    counted = counts["caught"] + counts["missed"] + counts["unchecked"]
    print(f"{counts['caught']} of {counted} that change what a kernel does are caught")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, *sys.argv[3:])

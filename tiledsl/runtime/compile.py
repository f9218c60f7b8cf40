"""Compile a Triton kernel for a named target, without a GPU; failures become one-line errors with a log file."""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import io
import linecache
import os
import re
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from tiledsl.errors import TileError
from tiledsl.location import Loc
from tiledsl.logs import note_once
from tiledsl.runtime import hazards
from tiledsl.runtime.launch_triton import compile_by
from tiledsl.runtime.module import kept_file
from tiledsl.runtime.resources import Resources, read_resources, run_tool
from tiledsl.runtime.streams import have_streams
from tiledsl.runtime.target import Target

_MOST_TRIES = 8

ASSEMBLY = ("ttir", "ttgir", "llir", "ptx", "sass", "amdgcn")
"""The stages behind the source that are text, of all targets."""


class CompileError(TileError):
    """Triton, MLIR, LLVM or ptxas refused a kernel. `stage` is where: "source", "ttir", "ttgir", "llir", "ptx",
    "cubin", "resources", ...; `log` names a file with all that was printed; `line` is that of the emitted source,
    counted from 1, 0 where Triton names none."""

    stage = "unknown"
    log: str | None = None
    line = 0

    def __reduce__(self) -> tuple[object, ...]:
        state = {"stage": self.stage, "log": self.log, "line": self.line}
        return (type(self), (self.message, self.loc, self.notes, self.code), state)


class Asm(Mapping[str, Any]):
    """A kernel's texts by stage (ttir, ttgir, llir, ptx or amdgcn, sass) and its binary (cubin or hsaco, bytes).

    `sass` is disassembled when first asked for; None if the tool is missing.
    """

    def __init__(self, stages: dict[str, Any]) -> None:
        self._stages = stages

    def __getitem__(self, stage: str) -> Any:
        if stage == "sass" and "cubin" in self._stages:
            return self._sass
        return self._stages[stage]

    def __iter__(self) -> Iterator[str]:
        yield from self._stages
        if "cubin" in self._stages:
            yield "sass"

    def __len__(self) -> int:
        return len(self._stages) + ("cubin" in self._stages)

    @functools.cached_property
    def _sass(self) -> str | None:
        return run_tool("nvdisasm", ["-c"], self._stages["cubin"])


@dataclass(frozen=True)
class CompiledKernel:
    """One compiled kernel. `triton` is Triton's own object, `options` what triton.compile was given.
    `level`: which one it was compiled from; "" for source."""

    name: str
    target: Target
    asm: Asm
    metadata: Mapping[str, Any]
    triton: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    level: str = ""

    @functools.cached_property
    def resources(self) -> Resources:
        """Shared memory, registers, spills, stack and the occupancy they allow; read when first asked for."""
        binary = self.asm["hsaco" if self.target.kind == "hip" else "cubin"]
        return read_resources(
            self.target, int(self.metadata["shared"]), int(self.metadata["num_warps"]), binary, self.asm
        )


def _again(compiled: Callable[[], Any]) -> Any:
    """What `compiled` returns, retried if concurrent parsing in threads fails.

    CPython before 3.11.8 and 3.12.2 has that defect (gh-106905).
    """
    for _ in range(_MOST_TRIES):
        try:
            return compiled()
        except Exception as error:
            if not _is_disturbed(error):
                raise
    return compiled()


def _is_disturbed(error: BaseException | None) -> bool:
    """Whether the parser failed for that reason, directly or as the cause of an error of Triton's."""
    while error is not None:
        if isinstance(error, SystemError) and "AST constructor recursion depth" in str(error):
            return True
        error = error.__cause__
    return False


def compile_emitted(module: Any, emitted: Any, target: Target) -> CompiledKernel:
    """Compile the function of a loaded module that an EmittedKernel, or what has its fields, describes."""
    return compile_kernel(
        getattr(module, emitted.name), emitted.signature, emitted.constexprs, target, emitted.num_warps,
        emitted.num_stages, attrs=emitted.divisible_by_16, **emitted.options,
    )  # fmt: skip


def without_torch() -> None:
    """Have this process, which compiles and does nothing else, take an empty module for torch: only launching needs it,
    and to load it takes longer than to compile."""
    if "torch" not in sys.modules:
        sys.modules["torch"] = stand_in = types.ModuleType("torch")
        stand_in.__spec__ = importlib.machinery.ModuleSpec("torch", None)


def compile_kernel(
    jit_function: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    target: Target,
    num_warps: int = 4,
    num_stages: int = 3,
    num_ctas: int = 1,
    maxnreg: int | None = None,
    launch_pdl: bool = False,
    attrs: Iterable[str] = (),
    enable_fp_fusion: bool = True,
    debug: bool = False,
    sanitize_overflow: bool = True,
    options: Mapping[str, Any] | None = None,
) -> CompiledKernel:
    """Compile a `@triton.jit` function for `target`, or raise CompileError.

    `signature` maps run-time parameters to Triton's type names ("*fp16", "i32"); `constexprs` maps the others to
    values. `attrs` names the parameters that are divisible by 16. `debug` keeps assertions, and those of
    `sanitize_overflow`. `options` are further options of the backend ("waves_per_eu"). A kernel that needs more shared
    memory than the target has is an error as well. No GPU driver is opened.
    """
    import triton

    level = getattr(jit_function, "artifact", None)
    if level is not None:  # it runs from a file, see tiledsl.levels
        return level.compiled_by(jit_function)  # type: ignore[no-any-return]
    wanted = {
        "num_warps": num_warps,
        "num_stages": num_stages,
        "num_ctas": num_ctas,
        "enable_fp_fusion": enable_fp_fusion,  # Triton 3.9 warns where it is left to its default
        **({"maxnreg": maxnreg} if maxnreg is not None and target.kind == "cuda" else {}),
        **({"launch_pdl": True} if launch_pdl else {}),
        **({"debug": True, "sanitize_overflow": sanitize_overflow} if debug else {}),
        **(options or {}),
    }
    names = list(jit_function.arg_names)
    types = {name: "constexpr" if name in constexprs else signature[name] for name in names}
    facts = _facts(types, set(attrs), {each.name for each in jit_function.params if each.do_not_specialize})
    source: Any = None
    with (
        reproduced(target, jit_function, lambda: source, wanted),
        reported(jit_function.__name__, target, jit_function),
    ):
        source = source_type(jit_function)(
            jit_function, types, {(names.index(name),): value for name, value in constexprs.items()}, facts
        )

        def made(more: Mapping[str, Any]) -> Any:
            options = {**wanted, **more}
            return _again(lambda: triton.compile(source, target=target.triton_target(), options=options))

        compiled = unharmed(jit_function.__name__, target, made)
    metadata = compiled.metadata._asdict()
    check_shared(jit_function.__name__, int(metadata["shared"]), target)
    return CompiledKernel(compiled.name, target, Asm(dict(compiled.asm)), metadata, compiled, wanted)


def unharmed(kernel: str, target: Target, compile: Callable[[Mapping[str, Any]], Any]) -> Any:
    """What Triton makes of a kernel, with these further options, where nothing in it is known to be wrong: see
    hazards.py. Raises CompileError where no option helps."""
    compiled = compile({})
    if target.kind != "cuda":
        return compiled
    if refused := hazards.refusal(compiled.asm):
        raise _wrong(f"{kernel}: this version of Triton computes wrongly with {refused[0]}", "ttgir", refused[1])
    more: dict[str, Any] = {}
    for change in ("ptx", "1", "0", ""):
        names = hazards.machine_code_hazards(Asm(dict(compiled.asm)))
        named = ", ".join(names)
        if not named:
            break
        if not change:
            raise _wrong(
                f"{kernel}: ptxas makes wrong code ({named})", "cubin", "TRITON_PTXAS_PATH names a newer ptxas"
            )
        if change == "ptx":
            repaired = hazards.repaired(compiled.asm["ptx"], names)
            if repaired == compiled.asm["ptx"]:
                continue
            more["ir_override"] = str(kept_file(f"{kernel}.ptx", repaired))
            told = "from PTX that is right"
        else:
            more["ptx_options"] = f"--opt-level {change}"
            told = f"by ptxas with --opt-level {change}"
        note_once(f"{kernel} is compiled {told}, because of {named}: hazards.py")
        compiled = compile(more)
    return compiled


def _wrong(message: str, stage: str, way_out: str) -> CompileError:
    error = CompileError(message, notes=[way_out])
    error.stage = stage
    return error


@contextlib.contextmanager
def reported(kernel: str, target: Target, function: Any = None) -> Iterator[_Capture]:
    """Have what Triton raises become a CompileError, and keep what it prints off the terminal. A TileError stays.
    `function`: the jitted one, where source is compiled."""
    with _captured() as capture, failures_as_errors(kernel, target, capture.text, function):
        yield capture


@contextlib.contextmanager
def reproduced(target: Target, function: Any, source: Callable[[], Any], options: Mapping[str, Any]) -> Iterator[None]:
    """Have a CompileError name a file that shows it without this package, as the pass manager does for passes."""
    try:
        yield
    except CompileError as error:
        made, path = source(), getattr(function, "__globals__", {}).get("__file__", "")
        if made is not None and error.log and str(function.__module__).startswith("_tiledsl_"):
            text = "".join(linecache.getlines(path)) + _reproducer(target, function.__name__, made, options)
            file = _written(f"{function.__name__}-", ".py", text)
            error.notes += [f"python {file} compiles it without tiledsl"] if file else []
        raise


_SHOWN = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "launch_pdl",
    "enable_fp_fusion",
    "debug",
    "sanitize_overflow",
)


def _reproducer(target: Target, name: str, source: Any, options: Mapping[str, Any]) -> str:
    shown = {key: options[key] for key in _SHOWN if options.get(key) is not None}
    return f"""

if __name__ == "__main__":
    from triton.backends.compiler import GPUTarget
    from {type(source).__module__} import {type(source).__name__}

    source = {type(source).__name__}({name}, {source.signature!r}, {source.constants!r}, {source.attrs!r})
    triton.compile(source, target=GPUTarget({target.kind!r}, {target.arch!r}, {target.warp_size}), options={shown!r})
"""


def guard(function: Any, target: Target, located: Callable[[TileError], Loc | None]) -> None:
    """Have what a jitted function compiles when it is launched be `unharmed`, and what is raised then be a CompileError
    at a place that `located` finds."""
    if not hasattr(function, "create_binder") or function.device_caches or hasattr(function, "artifact"):
        return  # another Triton, or it has run, or it runs from a file

    def guarded(ordinary: Callable[..., Any]) -> Callable[..., Any]:
        def compile(src: Any, target: Any = None, options: Any = None, **others: Any) -> Any:
            def compiled(more: Mapping[str, Any]) -> Any:
                return ordinary(src, target=target, options={**options, **more}, **others)

            try:
                with reproduced(where, function, lambda: src, options), reported(function.__name__, where, function):
                    return unharmed(function.__name__, where, compiled)
            except TileError as error:
                error.loc = error.loc or located(error)
                raise

        return compile

    where = target
    compile_by(function, guarded)


@contextlib.contextmanager
def failures_as_errors(kernel: str, target: Target, printed: Callable[[], str], function: Any = None) -> Iterator[None]:
    """Have what Triton raises become a CompileError. A TileError stays. `printed` gives what Triton has printed."""
    try:
        yield
    except TileError:
        raise
    except Exception as error:
        raise _failure(kernel, target, error, printed(), function) from error


def check_shared(kernel: str, shared: int, target: Target) -> None:
    """Raises CompileError if a kernel needs more shared memory, in bytes, than a block can have."""
    available = target.max_shared_bytes
    if shared > available:
        too_large = CompileError(
            f"{kernel} needs {shared} bytes of shared memory, and {target} has {available} for a block",
            notes=["smaller tiles, or fewer pipeline stages, need less"],
            code="shared-memory",
        )
        too_large.stage = "resources"
        raise too_large


def _facts(types: Mapping[str, str], divisible: Set[str], exempt: Set[str]) -> dict[tuple[int], list[list[Any]]]:
    """The divisibility attributes of the parameters for which a launch would look for them.

    A parameter without such a fact gets an empty entry, and one whose value Triton does not inspect gets none: Triton's
    cache key contains these entries, so a launch would otherwise compile again.
    """
    return {
        (number,): [["tt.divisibility", 16]] if name in divisible else []
        for number, (name, type) in enumerate(types.items())
        if name not in exempt and (type.startswith("*") or re.fullmatch(r"[iu](8|16|32|64)", type))
    }


def source_type(jit_function: Any) -> Any:
    """The class of Triton's that stands for a function to be compiled: Gluon functions have one of their own."""
    if jit_function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource


_STAGES = (
    ("CompilationError", "source"),
    ("UnsupportedLanguageConstruct", "source"),
    ("CompileTimeAssertionFailure", "source"),
    ("PTXASError", "cubin"),
    ("OutOfResources", "resources"),
)
_MAKERS = {"make_ir": "source", "make_ttir": "ttir", "make_ttgir": "ttgir", "make_llir": "llir", "make_ptx": "ptx"}
_MAKERS |= {"make_cubin": "cubin", "make_amdgcn": "amdgcn", "make_hsaco": "hsaco"}


def _failure(kernel: str, target: Target, error: Exception, printed: str, function: Any) -> CompileError:
    stage = next((stage for name, stage in _STAGES if any(c.__name__ == name for c in type(error).__mro__)), None)
    trace = error.__traceback__
    while trace is not None:
        stage = stage or _MAKERS.get(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    log = _written(f"{kernel}-", ".log", f"{kernel} for {target}\n\n{type(error).__name__}: {error}\n\n{printed}")
    notes = [] if log is None else [f"the full log is in {log}"]
    if isinstance(error, OSError):
        notes += _surroundings()
    result = CompileError(
        f"{kernel} does not compile for {target}, at stage {stage or 'unknown'}: {_first_line(error, printed)}",
        notes=notes,
    )
    result.stage = stage or "unknown"
    result.log = log
    result.line = _line_of(error, printed, function)
    return result


def _line_of(error: BaseException | None, printed: str, function: Any) -> int:
    """The line of the module of a jitted function that Triton complains of, counted from 1; 0 where it names none."""
    path = getattr(function, "__globals__", {}).get("__file__")
    if not path:
        return 0
    found = re.search(rf"{re.escape(path)}:(\d+):", printed)
    if found:
        return int(found[1])
    while error is not None:
        node: Any = getattr(error, "node", None)  # Triton's counts from the function's first line
        if hasattr(node, "lineno"):
            before = "".join(linecache.getlines(path)).partition(f"\ndef {function.__name__}(")[0]
            return before.count("\n") + 1 + int(node.lineno)
        error = error.__cause__
    return 0


def _written(prefix: str, suffix: str, text: str) -> str | None:
    """The name of a new file with the text; None where none can be written."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix=f"tiledsl-{prefix}", suffix=suffix, delete=False) as file:
            file.write(text)
    except OSError:
        return None
    return file.name


def _surroundings() -> list[str]:
    """Where Triton writes, and the programs that it was told to run: what an error of the system may come from."""
    from triton import knobs

    told = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if re.fullmatch(r"TRITON_PTXAS\w*_PATH", name)]
    written = f"Triton writes into {knobs.cache.dir} (TRITON_CACHE_DIR) and the folder for temporary files (TMPDIR)"
    return [*([f"Triton was told to run {', '.join(told)}"] if told else []), written]


def _first_line(error: Exception, printed: str) -> str:
    """The line that says what is wrong: the innermost cause's, ptxas's or MLIR's error, else the message's first."""
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    text = str(getattr(root, "error_message", None) or root).strip()
    for pattern, where in ((r"^ptxas\S* .*?(?:fatal|error)\s*:\s*(.+)", text), (r"\berror: (.+)", printed)):
        found = re.search(pattern, where, re.MULTILINE)
        if found and (where is text or text in ("", "PassManager::run failed")):
            return found[1].strip()[:300]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    located = [line for line in lines if not re.match(r"^(at \d+:\d+:|\^|\d+:|def |@)", line)]
    return f"{(located or lines or [type(root).__name__])[-1 if str(root).startswith('at ') else 0]}"[:300]


class _Capture:
    """What is written to file descriptor 2 while at least one compilation runs, and what compiling threads print."""

    lock = threading.Lock()
    threads: list[int] = []  # one entry a running compilation
    file = -1
    saved_stderr = -1
    saved_stdout: Any = None

    def __init__(self, start: int) -> None:
        self.start = start

    def text(self) -> str:
        """What has been printed since this compilation started (by other compiling threads, too)."""
        _flush()
        size = os.fstat(_Capture.file).st_size - self.start
        return os.pread(_Capture.file, size, self.start).decode(errors="replace")


class _Stdout(io.TextIOBase):
    """Stands for sys.stdout meanwhile: Triton prints whole modules there for ptxas's errors. Others pass through."""

    def write(self, text: str) -> int:
        if threading.get_ident() in _Capture.threads:
            return os.write(_Capture.file, text.encode()) and len(text)
        return int(_Capture.saved_stdout.write(text))

    def flush(self) -> None:
        _Capture.saved_stdout.flush()


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()


@contextlib.contextmanager
def _captured() -> Iterator[_Capture]:
    """Keep MLIR's and ptxas's output off the terminal. It is passed on afterwards if the compilation succeeds."""
    with _Capture.lock:
        if not _Capture.threads:
            have_streams()
            _flush()
            _Capture.file, path = tempfile.mkstemp(prefix="tiledsl-compile-")
            os.unlink(path)
            _Capture.saved_stderr, _Capture.saved_stdout = os.dup(2), sys.stdout
            os.dup2(_Capture.file, 2)
            sys.stdout = _Stdout()
        _Capture.threads.append(threading.get_ident())
        capture = _Capture(os.fstat(_Capture.file).st_size)
    failed = False
    try:
        yield capture
    except BaseException:
        failed = True
        raise
    finally:
        with _Capture.lock:
            printed = "" if failed else capture.text()
            _Capture.threads.remove(threading.get_ident())
            if not _Capture.threads:
                _flush()
                os.dup2(_Capture.saved_stderr, 2)
                os.close(_Capture.saved_stderr)
                os.close(_Capture.file)
                sys.stdout = _Capture.saved_stdout
        if printed:
            sys.stderr.write(printed)

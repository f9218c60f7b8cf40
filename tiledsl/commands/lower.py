"""`tiledsl lower`: what a program becomes, at any stage."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

from tiledsl.autotuner.tuned.shapes import parse_value as literal
from tiledsl.commands.report import give
from tiledsl.compat import install
from tiledsl.dialects.tile import FuncOp
from tiledsl.errors import TileError, meant, value_options
from tiledsl.files import read_text
from tiledsl.frontend.program import PrimFunc
from tiledsl.interchange.printer import print_generic
from tiledsl.ir.pass_manager import PASSES, Pass, PassManager, Program, is_ours
from tiledsl.ir.printer import print_op
from tiledsl.kernels.jit import JitFunction
from tiledsl.kernels.kernel import Kernel
from tiledsl.kernels.pass_choice import chosen_passes
from tiledsl.kernels.resume import resume
from tiledsl.launch_options import LAUNCH_OPTIONS
from tiledsl.passes import default_pipeline
from tiledsl.passes.user_passes import own_passes
from tiledsl.runtime.compile import ASSEMBLY
from tiledsl.runtime.lowering import check_print_after
from tiledsl.runtime.target import Target
from tiledsl.settings import current, override
from tiledsl.tracebacks import is_internal

IR_LEVELS = ("tile", "triton")
EMIT = ("source", *IR_LEVELS, *ASSEMBLY, "schedule", "dot", "all")


@dataclass(frozen=True)
class Request:
    """What to lower, and how far. `pass_configs` comes before the options that the program's own decorator gives."""

    file: Path
    function: str
    values: Mapping[str, Any]
    target: Target
    emit: str = "source"
    after: str = ""
    print_changed: bool = False
    pass_configs: Mapping[str, Any] | None = None
    resume_after: str = ""
    generic: bool = False


def requested(program: str, values: Iterable[str], target: str | None, configs: Iterable[str], **stage: Any) -> Request:
    """What the command line asks for: FILE[:FUNCTION], -D, --target, --pass-config and fields of a Request."""
    file, function = split_function(program)
    where = default_target() if target is None else Target.parse(target)
    options = dict(map(parse_option, configs))
    return Request(file, function, dict(map(parse_value, values)), where, pass_configs=options, **stage)


def save_levels(request: Request, folder: Path) -> list[Path]:
    """Write the program's kernels at every level into a folder; the paths. Raises as `lower` does."""
    kernel = kernel_of(request)
    paths = kernel.save_levels(folder)
    give(remarks=list(kernel.remarks))
    return paths


def report(request: Request, path: Path) -> Path:
    """Write a page about the program's kernel; the path. Raises as `lower` does."""
    kernel = kernel_of(request)
    written = kernel.report(path)
    give(remarks=list(kernel.remarks))
    return written


def kernel_of(request: Request) -> Kernel:
    """The kernel that was asked for. Raises as `lower` does."""
    if request.resume_after:
        return _resumed(request)
    build, request = _resolved(request)
    return Kernel(build, request.target, request.pass_configs)


def lower(request: Request) -> str:
    """The text that was asked for. Raises TileError for what is wrong with the file, the function or the values."""
    if request.emit == "dot":
        from tiledsl.graphs import to_dot

        return to_dot(kernel_of(request).graph(request.after))
    if request.resume_after:
        return _emitted(_resumed(request), request)
    build, request = _resolved(request)
    if request.emit in IR_LEVELS or request.after:
        return _ir(build, request)
    kernel = Kernel(build, request.target, request.pass_configs)
    if request.print_changed:
        _ir(build, request)
    return _emitted(kernel, request)


def _resumed(request: Request) -> Kernel:
    if request.function or request.values:
        raise TileError("--resume-after goes on from a file with IR, which has neither functions nor values")
    if not request.file.is_file():
        raise TileError(f"there is no file {request.file}")
    with override(print_after="changed" if request.print_changed else current().print_after):
        return resume(request.file, request.resume_after, request.target, request.pass_configs)


def _emitted(kernel: Kernel, request: Request) -> str:
    """The kernel's source or what Triton makes of it."""
    text = _text_of(kernel, request)
    give(remarks=list(kernel.remarks))
    return text


def _text_of(kernel: Kernel, request: Request) -> str:
    if request.after or request.emit in IR_LEVELS:
        return kernel.ir(request.after or request.emit, generic=request.generic)
    if request.emit == "source":
        return kernel.source
    if request.emit == "schedule":
        from tiledsl.commands.schedule import schedule_of

        return schedule_of(kernel, request.target)
    texts = {}
    for name, compiled in kernel.compiled.items():
        if request.emit not in compiled.asm:
            raise TileError(f"{request.target} has no {request.emit}; it has {', '.join(compiled.asm)}")
        texts[name] = compiled.asm[request.emit]
        if texts[name] is None:
            raise TileError(f"{request.emit} cannot be shown: the tool that makes it is missing")
    return "\n".join(f"// {name}\n{text}" if len(texts) > 1 else text for name, text in texts.items())


def _resolved(request: Request) -> tuple[Callable[[], FuncOp], Request]:
    """A function that elaborates the program, and the request with what its decorators say."""
    found = _text_program(request) if request.file.suffix != ".py" else _in_file(request)
    request = _with_first_config(found, request)
    request = replace(request, pass_configs={**_own_options(found), **(request.pass_configs or {})})
    return _of(found, request), request


def _ir(build: Callable[[], FuncOp], request: Request) -> str:
    check_print_after(current().print_after)
    write = print_generic if request.generic else print_op
    root = build()
    if (request.after or request.emit) in ("tile", "elaborate"):
        return write(root)
    manager = PassManager(
        default_pipeline(request.pass_configs),
        verify_each=current().verify_each,
        print_after="changed" if request.print_changed else current().print_after,
        stop_after=request.after,
    )
    manager.run(Program(root, request.target))
    return write(root)


def default_target() -> Target:
    """The setting's target; in place of `interpret`, which compiles nothing, that of an H100."""
    named = current().target
    if named == "auto":
        import torch

        named = "auto" if torch.cuda.is_available() else "cuda:90"
    return Target.parse("cuda:90" if named == "interpret" else named)


def parse_value(text: str) -> tuple[str, Any]:
    """`name=value`: a Python literal, else a name, such as that of an element type. Raises TileError without `=`."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip().isidentifier():
        raise TileError(f"{text!r} is not name=value")
    parsed = literal(value)
    if isinstance(parsed, tuple) and not value.strip().startswith("("):
        ways = [f"-D {name.strip()}={parsed[0]}"] if parsed else []
        notes = ["write " + " or ".join([*ways, f"-D '{name.strip()}=({value.strip()})' for a tuple"])]
        raise TileError(f"{text!r} is a list of values: this command takes one", notes=notes)
    return name.strip(), parsed


def parse_option(text: str) -> tuple[str, Any]:
    """`pass-name.option=value`, or the name that another compiler has for an option."""
    name, sign, value = text.partition("=")
    if not sign:
        raise TileError(f"{text!r} is not pass-name.option=value")
    return name.strip(), literal(value.capitalize() if value in ("true", "false") else value)


def split_function(text: str) -> tuple[Path, str]:
    """FILE or FILE:FUNCTION."""
    head, _, tail = text.rpartition(":")
    return (Path(head), tail) if head and tail.isidentifier() else (Path(text), "")


def _in_file(request: Request) -> Any:
    """The program or builder that was asked for."""
    if not request.file.is_file():
        raise TileError(f"there is no file {request.file}")
    module = import_file(request.file)
    if request.function:
        if not hasattr(module, request.function):
            raise TileError(f"{request.file} has no {request.function}", notes=[_listed(candidates(module))])
        return getattr(module, request.function)
    found = candidates(module)
    if len(found) != 1:
        raise TileError(f"{request.file} has {len(found)} programs; name one: FILE:FUNCTION", notes=[_listed(found)])
    return next(iter(found.values()))


def _with_first_config(function: Any, request: Request) -> Request:
    """Tunables of an autotuned function that have no value become those of its first configuration; stderr says so."""
    if not hasattr(function, "first_config"):
        return request
    jit: JitFunction = function.jit
    unset = [name for default in (None, Parameter.empty) for name in _parameters(jit.function, default)]
    config = function.first_config(request.values, request.target)
    config.pop("from_level", None)  # what is lowered has a source
    if not any(name in unset and name not in request.values for name in config):
        return request
    chosen = {**config, **request.values}
    text = ", ".join(f"{name}={value}" for name, value in chosen.items() if name in config)
    print(f"{jit.__name__}: {text}, as in its first configuration; -D gives other values", file=sys.stderr)
    pass_configs = {**jit._pass_configs(chosen), **(request.pass_configs or {})}
    return replace(request, values=chosen, pass_configs=pass_configs)


def _own_options(found: Any) -> dict[str, Any]:
    """The pass_configs of a function's decorator, or of a kernel."""
    found = getattr(found, "jit", found)
    given = found.options.get("pass_configs") if isinstance(found, JitFunction) else None
    return chosen_passes(found.pass_configs if isinstance(found, Kernel) else given)


def _listed(names: Iterable[str]) -> str:
    return "there are " + (", ".join(names) or "no programs in it")


def _text_program(request: Request) -> Any:
    from tiledsl.frontend.text_program import parse

    text = read_text(request.file)
    if request.function:
        raise TileError(f"{request.file} is a text program; FILE:FUNCTION is for Python files")
    if re.match(r"(\s|//.*)*tile\.func\b", text):
        ways = ["tiledsl lower FILE --resume-after PASS", "tiledsl opt FILE -p PASSES"]
        notes = [f"from the pass that it comes after: {ways[0]}", f"single passes over it: {ways[1]}"]
        raise TileError(f"{request.file} is IR, not a program", notes=notes)
    return parse(text, str(request.file), **request.values)


def import_file(file: Path) -> ModuleType:
    """A Python file as a module, its main part not run. `import tilelang` in it finds tiledsl."""
    install()
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise TileError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except TileError:
        raise
    except (Exception, SystemExit) as error:
        raise TileError(f"{file} cannot be imported\n{own_traceback(error)}") from error
    return module


def load_passes(file: Path) -> None:
    """Import a file for the passes that it defines. TileError if there are none in it, or it cannot be imported."""
    if not file.is_file():
        raise TileError(f"--load: there is no file {file}")
    before = {name: (_origin(each), each) for name, each in own_passes().items()}
    defined = [
        each
        for each in vars(import_file(file)).values()
        if isinstance(each, type) and issubclass(each, Pass) and not is_ours(each)
    ]
    if not defined:
        raise TileError(
            f"--load: {file} defines no pass", notes=["a pass is a class derived from tiledsl.ir.pass_manager.Pass"]
        )
    if not any(each.name for each in defined):
        raise TileError(f"--load: {defined[0].__name__} in {file} has no name", notes=['write name = "my-pass" in it'])
    for each in defined:
        last = PASSES.get(each.name, each)
        for origin, other in ((_origin(last), last), before.get(each.name, (_origin(each), each))):
            if origin != _origin(each):
                raise TileError(
                    f"--load: {each.__name__} in {file} is named {each.name!r}, as {other.__name__} in {origin[0]} is",
                    notes=["give one of them another name"],
                )


def _origin(pass_type: type[Pass]) -> tuple[str, str]:
    """The file and the name of a class, which stay where the file is imported again."""
    module = sys.modules.get(pass_type.__module__)
    return os.path.realpath(getattr(module, "__file__", None) or pass_type.__module__), pass_type.__qualname__


def own_traceback(error: BaseException) -> str:
    """A traceback as Python prints it, without the frames of importlib and of this package."""
    shown = traceback.TracebackException.from_exception(error, compact=True)
    shown.stack = traceback.StackSummary.from_list([each for each in shown.stack if not is_internal(each.filename)])
    return "".join(shown.format()).rstrip("\n")


def candidates(module: ModuleType) -> dict[str, Any]:
    """The programs and builders that a module defines itself, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, (PrimFunc, JitFunction, Kernel)) or isinstance(getattr(value, "jit", None), JitFunction)
        if getattr(value, "__module__", module.__name__) in (module.__name__, Kernel.__module__)
    }


def _of(program: Any, request: Request) -> Callable[[], FuncOp]:
    """A function that elaborates a program."""
    values = dict(request.values)
    if isinstance(program, Kernel):
        program = program.prim_func
    program = getattr(program, "jit", program) if isinstance(getattr(program, "jit", None), JitFunction) else program
    if isinstance(program, JitFunction):
        return _of_jit(program, values)
    if callable(program) and not hasattr(program, "build"):
        program, values = _called(program, values), {}
    if values and request.file.suffix == ".py":  # a text has taken them
        raise TileError(f"{request.function or 'the program'} takes no values, but -D gives {next(iter(values))}")
    if hasattr(program, "build"):
        return lambda: program.build(())
    raise TileError(f"{request.function or request.file} is {type(program).__name__}, not a program")


def _called(builder: Any, values: Mapping[str, Any]) -> Any:
    _refuse_unknown(getattr(builder, "__name__", str(builder)), builder, values)
    try:
        return builder(**values)
    except TypeError as error:
        missing = [name for name in _parameters(builder, Parameter.empty) if name not in values]
        notes = [f"give it: {value_options(missing)}"] if missing else []
        raise TileError(f"{getattr(builder, '__name__', builder)}: {error}", notes=notes) from None


def _refuse_unknown(name: str, builder: Any, values: Mapping[str, Any]) -> None:
    """TileError for a value of which a function has no parameter."""
    try:
        parameters = signature(builder).parameters
    except (ValueError, TypeError):  # some of C have no signature
        return
    unknown = [each for each in values if each not in parameters]
    if unknown and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        notes = [meant(unknown[0], parameters, "its parameters are")]
        if unknown[0] in LAUNCH_OPTIONS:
            notes.append(f"of the launch: --pass-config lower-to-triton.{unknown[0]}={values[unknown[0]]}")
        raise TileError(f"{name} has no parameter {unknown[0]!r}", notes=notes)


def _parameters(builder: Any, default: Any) -> list[str]:
    """The names of a function's parameters with this default."""
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    with contextlib.suppress(ValueError, TypeError):  # some of C have no signature
        found = signature(builder).parameters.values()
        return [each.name for each in found if each.default is default and each.kind in named]
    return []


def _of_jit(function: JitFunction, values: dict[str, Any]) -> Callable[[], FuncOp]:
    out_idx = function.options.get("out_idx")
    unset = [name for name in _parameters(function.function, None) if name not in values]
    if function.is_eager:
        names = function.signature.parameters
        bound = {**{n: p.default for n, p in names.items() if p.default is not p.empty}, **values}
        return _saying(unset, function._builder({**dict.fromkeys(n for n in names if n not in bound), **bound}))
    _refuse_unknown(function.__name__, function.function, values)
    missing = [name for name in _parameters(function.function, Parameter.empty) if name not in values]
    if missing:
        raise TileError(
            f"{function.__name__} needs {', '.join(missing)}", notes=[f"give them: {value_options(missing)}"]
        )
    program = _saying(unset, lambda: function.build(function._bind((), values)))()
    indices = () if out_idx is None else (out_idx,) if isinstance(out_idx, int) else tuple(out_idx)
    return _saying(unset, lambda: program.build(indices))


def _saying(unset: Sequence[str], build: Callable[[], Any]) -> Callable[[], Any]:
    """A function that builds, and tells of a mistake that comes from None how to give what has no value."""

    def told() -> Any:
        try:
            return build()
        except TileError as error:
            if unset and re.search(r"\bNone\b", error.message):
                error.notes.append(f"tunables without a value here are given by {value_options(unset)}")
            raise

    return told

"""Compile a kernel from one of its levels on, with Triton's own stages.

What is made lies in a folder of its own, named by all that it depends on: the file's content first of all. Triton's
cache and what the tuner keeps never see it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tiledsl.digests import digest
from tiledsl.errors import TileError
from tiledsl.files import write_file, writing
from tiledsl.levels.bundle import LevelFile
from tiledsl.levels.record import Record
from tiledsl.levels.subprocess_compile import compile_in_subprocess
from tiledsl.location import Loc
from tiledsl.runtime.compile import Asm, CompiledKernel, CompileError, check_shared, reported
from tiledsl.runtime.kernel_files import LEVELS
from tiledsl.runtime.launch_stored import library_size
from tiledsl.runtime.target import Target
from tiledsl.settings import current

CACHE = "it is in the cache, whose folder the setting cache_dir names"
_MLIR = ("ttir", "ttgir")
_TEXTS = (*_MLIR, "llir")  # which Triton's own library reads
# What launches read and older versions of Triton do not write.
_DEFAULTS = {
    "global_scratch_size": 0, "global_scratch_align": 1, "profile_scratch_size": 0, "profile_scratch_align": 1,
    "tmem_size": 0, "tensordesc_meta": [], "launch_cooperative_grid": False, "launch_pdl": False,
}  # fmt: skip
_OF_TARGET = (
    "arch", "base_arch", "backend_name", "warp_size", "max_num_imprecise_acc_default", "supported_fp8_dtypes",
    "deprecated_fp8_dot_operand_dtypes", "allowed_dot_input_precisions", "extern_libs",
)  # fmt: skip


def build(file: LevelFile, record: Record, target: Target) -> CompiledKernel:
    """The kernel compiled from a level's file on, or found as it was compiled before. Raises CompileError.

    `asm` has the level itself and those below it. No GPU driver is opened.
    """
    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler.compiler import CompiledKernel as Compiled
    from triton.compiler.compiler import make_backend

    backend = make_backend(target.triton_target())
    options = _options(record)
    parts = [
        file.level, file.digest, record.name, record.language, str(target), options, dict(record.metadata),
        triton.__version__, library_size(), backend.hash(), get_cache_invalidating_env_vars(),
    ]  # fmt: skip
    key = digest(json.dumps(parts, sort_keys=True, default=str))
    folder = Path(current().cache_dir).expanduser() / "levels" / key[:32]
    described = folder / f"{record.name[:150]}.json"
    if not described.is_file():
        is_edited = file.level in _TEXTS and record.files.get(file.level) != file.digest
        if is_edited and sys.executable:
            compile_in_subprocess(file, record, target, folder, key)
        else:
            with reported(record.name, target) as capture:
                make(file, record, target, folder, key, capture.text)
    made = [folder / f"{record.name[:150]}.{suffix}" for suffix in (*LEVELS, "json")]
    group = {each.name: str(each) for each in made if each.is_file()}
    source = SimpleNamespace(signature={}, constants={}, fn=None, name=record.name)
    compiled = Compiled(source, group, key)
    metadata = compiled.metadata._asdict()
    check_shared(record.name, int(metadata["shared"]), target)
    return CompiledKernel(compiled.name, target, Asm(dict(compiled.asm)), metadata, compiled, options, file.level)


def unknown_option(options: Mapping[str, Any], target: Target) -> str:
    """The name of the first of these options that Triton does not have for a target; "" where it has all."""
    from triton.compiler.compiler import make_backend

    known = vars(make_backend(target.triton_target()).parse_options({"enable_fp_fusion": True}))
    return next((name for name in options if name not in known), "")


def _options(record: Record) -> dict[str, Any]:
    """What Triton is told: as it was told, without what follows from the target."""
    told = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in record.options.items()
        if name not in _OF_TARGET and value is not None
    }
    return {"enable_fp_fusion": True, **told}  # Triton 3.9 warns where it is left to its default


def make(
    file: LevelFile, record: Record, target: Target, folder: Path, key: str, printed: Callable[[], str]
) -> None:  # fmt: skip
    """Run the stages below a level, and write what they make to `folder`, the metadata last.

    printed: what Triton has written to the terminal so far. Raises TileError, and what Triton raises.
    """
    import triton
    from triton._C.libtriton import llvm
    from triton.backends.compiler import Language
    from triton.compiler.compiler import make_backend

    backend = make_backend(target.triton_target())
    options = _options(record)
    start = folder / f"{record.name[:150]}.{file.level}"
    _write(start, file.data)
    module: Any = file.content
    if file.level in _MLIR:
        module = read_mlir(start, file, backend, printed)
        warps, blocks = (module.get_int_attr(f"ttg.{name}") for name in ("num-warps", "num-ctas"))
        options |= {} if file.level == "ttir" else {"num_warps": warps or 4, "num_ctas": blocks or 1}
    parsed = backend.parse_options(dict(options))
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, Language.GLUON if record.language == "gluon" else Language.TRITON)
    if file.level not in stages:
        raise TileError(
            f"{file.what}: kernels in {record.language.title()} for {target} have no {file.level}",
            notes=[f"they have {', '.join(stages)}"],
        )
    metadata: dict[str, Any] = {**_DEFAULTS, **vars(parsed)}
    if file.level in _MLIR:
        metadata["tensordesc_meta"] = module.get_tensordesc_metadata() if file.level == "ttgir" else []
    else:
        metadata |= {name: value for name, value in record.metadata.items() if name not in _OF_TARGET}
    metadata |= {
        "name": record.name,
        "target": target.triton_target(),
        "hash": key,
        "triton_version": triton.__version__,
    }
    llvm.init_targets()  # otherwise the stage that makes llir does it
    names = list(stages)
    for name in names[names.index(file.level) + 1 :]:
        try:
            module = stages[name](module, metadata)
        except Exception as error:
            raise _at_line(file, start, name, error) or error from None
        data = module if isinstance(module, bytes) else str(module).encode()
        _write(folder / f"{record.name[:150]}.{name}", data)
    _write(folder / f"{record.name[:150]}.json", json.dumps(metadata, default=vars).encode())


def read_mlir(path: Path, file: LevelFile, backend: Any, printed: Callable[[], str]) -> Any:
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    try:
        module = ir.parse_mlir_module(str(path), context)
    except RuntimeError:
        raise _refused(path, file, printed()) from None
    module.context = context
    return module


def _refused(path: Path, file: LevelFile, printed: str) -> CompileError:
    """MLIR's first error, with the line of the user's file. An operation that does not verify is named by where it
    stems from; its line is known if it is the only one of its name."""
    said = re.search(r"^(.*)error: (.*)", printed, re.MULTILINE)
    error = CompileError(f"{file.what} is no valid {file.level}: {said[2] if said else 'Triton cannot read it'}")
    error.stage = file.level
    place = re.search(re.escape(str(path)) + r"\"?:(\d+):(\d+)", said[1]) if said else None
    if place is not None:
        line, column = int(place[1]), int(place[2])
        error.loc = Loc(str(file.path or path), line, column, line, column + 1)
        return error
    operation = re.match(r"'([\w.]+)' op", said[2]) if said else None
    lines = file.data.decode(errors="replace").split("\n")
    named = [number for number, text in enumerate(lines, 1) if operation and re.search(rf"\b{operation[1]}\b", text)]
    if len(named) == 1:
        text = lines[named[0] - 1]
        error.loc = Loc(str(file.path or path), named[0], len(text) - len(text.lstrip()) + 1, named[0], len(text) + 1)
    return error


def _write(path: Path, data: bytes) -> None:
    with writing(path, notes=[CACHE]):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data)


def _at_line(file: LevelFile, path: Path, stage: str, error: Exception) -> CompileError | None:
    """ptxas's error, with the line of the user's file that it means."""
    found = re.search(r"ptxas\S* \S+, line (\d+); (?:fatal|error)\s*:\s*(.+)", str(error))
    if file.level != "ptx" or found is None:
        return None
    result = CompileError(f"{file.what} does not assemble: {found[2].strip()}")
    line = int(found[1])
    result.loc = Loc(str(file.path or path), line, 1, line, 1000)
    result.stage = stage
    return result


def attributes_of(record: Record) -> Mapping[tuple[int], list[list[Any]]]:
    """The arguments' attributes as ASTSource takes them."""
    arguments = record.arguments or ()
    return {
        (number,): [[name, value] for name, value in each.attributes.items()]
        for number, each in enumerate(arguments)
        if not each.is_constant
    }

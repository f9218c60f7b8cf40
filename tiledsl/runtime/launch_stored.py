"""Kernels as Triton compiled them, kept as files: a launch in a new process takes them and compiles nothing.

Triton has a cache of its own, but to look there a process first hashes Triton's library, which takes over a second, and
asks ptxas for its version. Here a jitted function that is about to be compiled is given the kept binary instead, if all
that Triton's key depends on is as it was: the function's text, types, constants and alignments of the arguments,
options, target, Triton's version and the size of its library, and the variables that Triton's compiler reads. Whatever
differs is compiled, or found in Triton's cache, as without this module, and is kept for the next process.

Triton's C function that launches kernels, and the one that loads them, are in its cache where a kernel of these
parameters has run before. On another machine a C compiler makes them once, which takes seconds.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledsl.digests import digest
from tiledsl.files import read_file
from tiledsl.runtime import kernel_files
from tiledsl.runtime.launch_triton import compile_by, knobs

_TRITONS = {"triton": "json"}  # our ending of Triton's metadata, and Triton's
# Where one of these is set, Triton is to compile otherwise, or to be seen compiling.
_COMPILATION = (
    "always_compile", "override", "dump_ir", "listener", "instrumentation_mode", "fpsan_homomorphic_casts",
)  # fmt: skip
_RUNTIME = ("debug", "add_stages_inspection_hook", "jit_cache_hook", "jit_post_compile_hook")


_CONVERTED = ("target", "cluster_dims")  # of Triton's metadata, from what JSON has
_MOST = 16  # binaries of one function
SCHEMA = 1


@dataclass(frozen=True)
class CachedBinary:
    """The binaries of one jitted function in a folder; `source` is the SHA-256 of its module's text.

    `<name>.<16 digits>.kept.json` says what one was compiled for, beside it lie Triton's metadata and the binary.
    """

    name: str
    folder: Path
    source: str

    def load(self, src: Any, target: Any, options: Mapping[str, Any]) -> Any:
        """Triton's compiled kernel for its ASTSource; None if there is none for it, or the files make no sense."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            wanted = {"source": self.source, **cache_key(src, target, options)}
            name = self._name_for(wanted)
            if _is_watched():
                return None
            described = json.loads(read_file(self.folder / f"{name}.json", own=True))
            if described["schema"] != SCHEMA or described["asked"] != wanted:
                return None
            kept = kernel_files.read(self.folder, name, described["files"])
            from triton.compiler import CompiledKernel

            group = {f"{self.name}.{_TRITONS.get(kind, kind)}": str(path) for kind, (path, _) in kept.items()}
            metadata = json.loads(kept["triton"][1])
            compiled = CompiledKernel(src, group, metadata["hash"])  # which reads the files again
            as_read = {name: getattr(compiled.metadata, name) for name in metadata if name not in _CONVERTED}
            is_same = all(metadata[name] == value for name, value in as_read.items())
            return compiled if is_same and compiled.kernel in [data for _, data in kept.values()] else None
        return None

    def keep(self, compiled: Any, options: Mapping[str, Any]) -> list[Path]:
        """Write what triton.compile returned for these options; the files. OSError if they cannot be written.

        Nothing is written, and the list is empty, where there are many already. LookupError if Triton's cache has lost
        its metadata.
        """
        if len(list(self.folder.glob(f"{self.name}.*.kept.json"))) >= _MOST:
            return []
        wanted = {"source": self.source, **cache_key(compiled.src, compiled.metadata.target, options)}
        files = kernel_files.contents(compiled, kernel_files.BINARIES)
        metadata = next(path for name, path in compiled.metadata_group.items() if name.endswith(".json"))
        try:
            files["triton"] = Path(metadata).read_bytes()
        except OSError as error:
            raise LookupError(f"Triton's metadata of {self.name}") from error
        described = {"schema": SCHEMA, "asked": wanted, "files": kernel_files.digests(files)}
        text = json.dumps(described).encode()
        return kernel_files.write(self.folder, self._name_for(wanted), files, text)

    def _name_for(self, wanted: Mapping[str, Any]) -> str:
        return f"{self.name}.{digest(json.dumps(wanted, sort_keys=True))[:16]}.kept"


def cache_key(src: Any, target: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What Triton compiles for besides the function's text, as JSON values: arguments, options, target, Triton itself.

    src: Triton's ASTSource; options: as triton.compile takes them. Raises what Triton raises for wrong options.
    """
    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler import make_backend

    parsed = make_backend(target).parse_options({**options, **src.parse_options()})
    values = {
        "language": str(src.language),
        "signature": dict(src.signature),
        "constants": {str(path): str(value) for path, value in src.constants.items()},
        "attrs": str(src.attrs),
        "options": vars(parsed),
        "target": vars(target),
        "variables": get_cache_invalidating_env_vars(),
        "triton": str(triton.__version__),
        "library": library_size(),
    }
    return dict(json.loads(json.dumps(values, default=str)))


def install(function: Any, kept: CachedBinary) -> None:
    """Have a jitted function that has not run yet take what was kept where it would compile, and keep the rest."""
    # An unknown Triton, or one that has already looked, or that takes a level of the kernel.
    if knobs() is None or function.device_caches or hasattr(function, "artifact"):
        return

    def keeping(ordinary: Callable[..., Any]) -> Callable[..., Any]:
        def compile(src: Any, target: Any = None, options: Any = None, **others: Any) -> Any:
            compiled = kept.load(src, target, options)
            if compiled is None:
                compiled = ordinary(src, target=target, options=options, **others)
                if not _is_watched():
                    with contextlib.suppress(Exception):  # only the next process is the slower for it
                        kept.keep(compiled, options)
            return compiled

        return compile

    compile_by(function, keeping)
    function.kept = kept


def find(function: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What was kept of a jitted function for a launch with these arguments and options.

    None if there is nothing, or that is not sure: then `function.run` knows. To look at arguments, Triton itself
    imports Gluon, which takes as long as all the rest.
    """
    kept = getattr(function, "kept", None)
    if kept is None or function.is_gluon() or function.debug or function.pre_run_hooks:
        return None
    from triton.compiler import ASTSource
    from triton.runtime.driver import driver

    with contextlib.suppress(KeyError, AttributeError, ValueError):
        types, facts = {}, {}
        for number, (param, value) in enumerate(zip(function.params, arguments, strict=True)):
            types[param.name], is_divisible = specialised(value, param.do_not_specialize)
            if is_divisible is not None:
                facts[(number,)] = [["tt.divisibility", 16]] if is_divisible else []
        return kept.load(ASTSource(function, types, {}, facts), driver.active.get_current_target(), options)
    return None


def specialised(value: Any, as_it_is: bool) -> tuple[str, bool | None]:
    """Triton's type of an argument, and whether Triton compiles for its being a multiple of 16; None if it does not
    ask, as of integers that are taken `as_it_is`. ValueError for what is not known here, or becomes a constant."""
    from triton._utils import canonicalize_dtype

    if type(value) is float:
        return "fp32", None
    if type(value) is int and (value != 1 or as_it_is) and -(1 << 63) <= value < 1 << 63:
        return "i32" if -(1 << 31) <= value < 1 << 31 else "i64", None if as_it_is else value % 16 == 0
    if hasattr(value, "data_ptr"):
        return f"*{canonicalize_dtype(value.dtype)}", value.data_ptr() % 16 == 0
    if type(value).__name__ == "TensorDescriptor" and not hasattr(value, "layout"):
        return f"tensordesc<{canonicalize_dtype(value.base.dtype)}{list(value.block_shape)}>", None
    raise ValueError(f"an argument that is a {type(value).__name__}")


def _is_watched() -> bool:
    found = knobs()
    if found is None:
        return True
    set_of = ((found[0], _RUNTIME), (found[1], _COMPILATION))
    return any(getattr(knob, name, None) for knob, names in set_of for name in names)


@functools.cache
def library_size() -> int:
    """Bytes of Triton's library, which tell builds of one version apart."""
    from triton._C import libtriton

    return Path(str(libtriton.__file__)).stat().st_size

"""What comes from outside changes names and strings of emitted text, never its structure."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

import tiledsl
import tiledsl.language as T
from tests.codegen.conftest import lower
from tests.codegen.test_gluon import attention
from tests.codegen.test_programs import CONTROL, GEMM, SOFTMAX
from tests.support.load_file import load_file
from tiledsl.codegen.names import PythonNames, comment, quoted
from tiledsl.codegen.triton_source import emit
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.printer import attribute_text, print_op
from tiledsl.ir.verifier import VerifyError, verify
from tiledsl.location import UNKNOWN
from tiledsl.passes import default_pipeline

PLANTED = "planted_by_a_name"
NASTY = [
    *(chr(code) for code in (0, 7, 9, 10, 11, 12, 13, 0x1C, 0x1D, 0x1E, 0x7F, 0x85, 0xA0, 0xAD, 0x2028, 0x2029)),
    *(chr(code) for code in (0x202A, 0x202E, 0x2066, 0x2069, 0x200B, 0x200F, 0xFEFF, 0xDC80, 0xE000, 0x1F600)),
    *('"', "'", '"""', "'''", "\\", "\\n", "\\N{DIGIT ONE}", "#", "{", "}", "{0}", "%s", "$x", "`", ";", ":", "", " "),
    *("ﬁ", "𝐭𝐥", "x²", "١", "é", "coding", "coding:utf-7", "__debug__", "None", "range", "tl", "class", "lambda", "0"),
    f"a\n{PLANTED} = 1\n#", f"a\r{PLANTED} = 1\r#", f"a\x0c\n{PLANTED} = 1", f"a\u2028{PLANTED} = 1\u2028",
    f'"); {PLANTED} = 1 #', f"\"\"\"\n{PLANTED} = 1\n\"\"\"", f"x]); {PLANTED}=1; (([", f"{{{PLANTED}}}",
    f"A.0]\n{PLANTED} = (0", f"A.0//{PLANTED}",
]  # fmt: skip


FEW = [
    each for each in NASTY if PLANTED in each or each in ("\0", "\n", "\u2028", "\udc80", '"', "\\", "ﬁ", "class", "0")
]


def shape_of(source: str) -> str:
    """The structure of a module: its syntax tree without names, strings and what comments say."""
    compile(source.encode(), "emitted.py", "exec", dont_inherit=True)  # as a file: encodings count too
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Name():
                node.id = "name"
            case ast.arg():
                node.arg = "name"
            case ast.FunctionDef():
                node.name = "name"
            case ast.Constant(value=str()):
                node.value = "text"
            case ast.Constant(value=int()):
                node.value = 0
    assert all(not isinstance(node, ast.Name) or node.id != PLANTED for node in ast.walk(ast.parse(source)))
    return ast.dump(tree)


PRINTS = """
tile.func {sym_name = "prints", parameters = ("A", "B"), symbols = ("m",), symbol_sources = ("A.0-1//2",)}
    (%A: buffer<m*int32, global>, %B: buffer<64*int32, global>, %m: int32) {
  %W = tile.alloc : buffer<m*int32, global>
  tile.kernel [%m] {threads = 32, sym_name = "k", options = (("num_warps", 2),)} (%b: int32) {
    %c0 = arith.constant {value = 0} : int32
    %x = tile.load %A[%b] {guarded = true, eviction = "evict_first", cache = ".cg"} : int32 loc("a.tile" 3 1 3 2)
    %ok = arith.cmp %x, %c0 {predicate = "ge"} : bool
    tile.print [%x] {message = "x ="} loc("a.tile" 4 1 4 2)
    tile.assert %ok {message = "x is negative"}
    %y = arith.cast %x : float32
    %e = arith.math [%y] {function = "exp2"} : float32
    %z = arith.cast %e : int32
    %old = tile.atomic %z, %B[%c0] {kind = "add", semantics = "acq_rel", guarded = true} : int32
    tile.store %old, %W[%b] {guarded = true, eviction = "evict_last"}
  }
}"""
TEXTS = {"gemm": GEMM, "softmax": SOFTMAX, "control": CONTROL, "prints": PRINTS}


def test_a_shape_has_no_names_and_no_strings() -> None:
    assert shape_of("a = 'x'\ndef f(b): return 'y'") == shape_of("b = 'z'\ndef g(c): return '\\n'")
    assert shape_of("a = 'x'") != shape_of("a = 'x'\nb = 1")


def _rename(root: Operation, name: str) -> None:
    """Give all values one name, and all places one file."""
    for op in root.walk():
        op.loc = UNKNOWN if op.loc is UNKNOWN else dataclasses.replace(op.loc, file=f"/folder/{name}")
        for value in (*op.results, *(arg for region in op.regions for arg in region.args)):
            value.name = name


@pytest.mark.parametrize("name", TEXTS)
def test_names_of_values_and_files(name: str) -> None:
    plain: dict[str, str] = {}
    for nasty in filter(None, NASTY):
        # where expressions are divided depends on the length of names, as given and as written
        harmless = ["v" * length for length in (len(nasty), len(PythonNames().claim(nasty)))]
        for each in (*harmless, nasty):
            if each not in plain:
                plain[each] = shape_of(_lowered(TEXTS[name], lambda root, to=each: _rename(root, to)))
        assert plain[nasty] in [plain[each] for each in harmless], ascii(nasty)


def _lowered(text: str, change: Callable[[Operation], None]) -> str:
    """The source of a program whose IR was changed. Raises VerifyError for what a verifier refuses."""
    program = parse_program(text)
    change(program.root)
    verify(program.root)
    for each in default_pipeline():
        each.run(program)
    return emit(program.root).source


def _places(root: Operation) -> list[tuple[Operation, str, tuple[int, ...]]]:
    """Where operations have strings among their attributes, or tuples of numbers: the path into tuples."""
    places: dict[tuple[str, str, tuple[int, ...]], tuple[Operation, str, tuple[int, ...]]] = {}
    for op in root.walk():
        for key, value in op.attributes.items():
            paths = list(_strings(value)) or ([(0,)] if isinstance(value, tuple) and value else [])
            for path in paths:
                if (op.name, key) != ("tile.kernel", "options"):  # hints, which change what is emitted
                    places.setdefault((op.name, key, path), (op, key, path))
    return list(places.values())


def _strings(value: Any) -> Iterator[tuple[int, ...]]:
    if isinstance(value, str):
        yield ()
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from ((number, *path) for path in _strings(each))


def _with(value: Any, path: tuple[int, ...], text: str) -> Any:
    if not path:
        return text
    first, *rest = path
    return tuple(_with(each, tuple(rest), text) if at == first else each for at, each in enumerate(value))


@pytest.mark.parametrize("name", TEXTS)
def test_strings_among_attributes(name: str) -> None:
    plain = shape_of(_lowered(TEXTS[name], lambda root: None))
    places = len(_places(parse_program(TEXTS[name]).root))
    for number in range(places):
        for nasty in FEW:

            def change(root: Operation, number: int = number, text: str = nasty) -> None:
                op, key, path = _places(root)[number]
                op.set_attribute(key, _with(op.attributes[key], path, text))

            with contextlib.suppress(VerifyError, TileError):
                assert shape_of(_lowered(TEXTS[name], change)) == plain, (number, ascii(nasty))


@pytest.mark.parametrize("name", TEXTS)
def test_strings_among_attributes_of_what_is_written(name: str) -> None:
    program = parse_program(TEXTS[name])
    for each in default_pipeline():
        each.run(program)
    plain = shape_of(emit(program.root).source)
    for op, key, path in _places(program.root):
        before = op.attributes[key]
        for nasty in FEW:
            op.set_attribute(key, _with(before, path, nasty))
            with contextlib.suppress(VerifyError, TileError):
                verify(program.root)
                assert shape_of(emit(program.root).source) == plain, (op, ascii(nasty))
        op.set_attribute(key, before)


def test_names_in_gluon() -> None:
    kernel = attention()
    *_, stage = (each for each in kernel.stages if (each.text or "").startswith("tile.func"))
    shapes = []
    for nasty in ("v", *NASTY[8:16], '"', "\\"):
        program = parse_program(stage.text)
        _rename(program.root, nasty)
        shapes.append(shape_of(emit(program.root).source))
    assert len(set(shapes)) == 1


# What users say


def printing(message: str, name: str = "A") -> Any:
    @T.prim_func
    def prints(A: T.Tensor((64,), "int32")):  # type: ignore[no-untyped-def]
        with T.Kernel(64, threads=32) as bx:
            T.print(A[bx], msg=message)
            T.device_assert(A[bx] < 64, message)

    return prints


@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
def test_messages(nasty: str) -> None:
    plain, other = (tiledsl.compile(printing(text), target="cuda:90").source for text in ("plain", nasty))
    assert shape_of(other) == shape_of(plain)
    found = [node.value for node in ast.walk(ast.parse(other)) if isinstance(node, ast.Constant)]
    assert nasty in found or not nasty  # the assertion's, as it is


TEXT_PROGRAM = """@T.prim_func
def f(A: T.Tensor((64,), "int32")):
    with T.Kernel(64, threads=32) as bx:
        A[bx] = A[bx] + 1
"""


@pytest.mark.parametrize("nasty", [each for each in NASTY if each and not set(each) & {"\0", "/"}], ids=ascii)
def test_names_of_files_with_programs(nasty: str, tmp_path: Path) -> None:
    shapes = []
    for name in ("plain", nasty):
        path = tmp_path / f"{name}.tile"
        path.write_text(TEXT_PROGRAM)
        shapes.append(shape_of(tiledsl.compile(tiledsl.parse_file(path), target="cuda:90").source))
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
def test_names_of_dimensions_and_options(nasty: str) -> None:
    def source(size: Any, **options: Any) -> str:
        @T.prim_func
        def f(A: T.Tensor((size,), "int32")):  # type: ignore[no-untyped-def]
            with T.Kernel(size, threads=32, **options) as bx:
                A[bx] = A[bx] + 1

        return tiledsl.compile(f, target="cuda:90").source

    plain = source(T.dynamic("n"))
    with contextlib.suppress(TileError):
        assert shape_of(source(T.dynamic(nasty))) == shape_of(plain)
    for option in ("num_warps", "num_stages", "launch_pdl", "cluster_dims"):
        with contextlib.suppress(TileError):
            assert shape_of(source(T.dynamic("n"), **{option: nasty})) == shape_of(plain)


# The functions themselves


@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
def test_each_escape(nasty: str) -> None:
    assert ast.literal_eval(quoted(nasty)) == nasty
    assert quoted(nasty).isascii() and len(quoted(nasty).splitlines()) == 1
    line = f"# {comment(nasty)}"
    assert len(line.splitlines()) == 1 and line.encode().decode() == line
    compile(line.encode() + b"\nx = 1\n", "a.py", "exec", dont_inherit=True)
    names = PythonNames()
    made = [names.claim(nasty), names.claim(nasty), names.claim("fi"), names.claim("tl"), names.claim("é")]
    assert len({ast.parse(each, mode="eval").body.id for each in made}) == len(made)  # type: ignore[attr-defined]
    text = attribute_text(nasty)
    program = print_op(parse_program(PRINTS).root).replace('"x ="', text)
    printed = next(op for op in parse_program(program).root.walk() if op.name == "tile.print")
    assert printed.attributes["message"] == nasty


def test_files_named_in_ir_text() -> None:
    plain = shape_of(lower(PRINTS).source)
    for nasty in NASTY:
        text = PRINTS.replace('"a.tile"', attribute_text(nasty))
        assert shape_of(lower(text).source) == plain, ascii(nasty)


WORDS = [
    "num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl", "enable_fp_fusion", "debug", "instrumentation_mode",
    "fpsan_homomorphic_casts", "grid", "warmup", "options", "params", "specialization", "specialize_impl", "backend",
    "JITCallable", "dynamic_func", "self", "args", "kwargs", "tl", "triton", "torch", "device", "stream", "größe",
]  # fmt: skip


def test_names_that_launches_use(tmp_path: Path) -> None:
    """Triton binds the kernel's arguments, with the options of its launch, as given."""
    text = f"""
@T.prim_func
def größe(X: T.Tensor((8,), "int32"), {", ".join(f"{word}: T.int32" for word in WORDS)}, Y: T.Tensor((8,), "int32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            Y[i] = X[i] + {" + ".join(f"{word} * {number}" for number, word in enumerate(WORDS, 1))}
"""
    program = tiledsl.parse(text)
    x, y = torch.arange(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    numbers = [3 + number * number for number in range(len(WORDS))]
    tiledsl.compile(program, target="interpret")(x, *numbers, y)
    assert torch.equal(y, x + sum(place * number for place, number in enumerate(numbers, 1)))
    kernel = tiledsl.compile(program, target="cuda:90")
    (emitted,) = kernel.module.kernels
    (tmp_path / "emitted.py").write_text(kernel.source, encoding="utf-8")
    function = JITFunction(getattr(load_file(tmp_path / "emitted.py"), emitted.name).fn)
    assert function.__name__.isascii()  # which Triton's compiler wants
    bind = create_function_from_signature(function.signature, function.params, make_backend(GPUTarget("cuda", 90, 32)))
    options = {"num_warps": 1, "num_stages": 1, "debug": False, "instrumentation_mode": "", **emitted.options}
    options |= {"fpsan_homomorphic_casts": False}
    arguments = [x, *numbers, y]
    bound, specialization, left = bind(*arguments, **options)
    assert [*bound.values()] == arguments and left == options
    assert [kind for kind, _ in specialization] == ["*i32", *["i32"] * len(numbers), "*i32"]

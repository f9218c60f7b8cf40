"""lower-tile-ops."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.passes.ir_cases import after, filecheck, kernel, to_values
from tests.support.programs import check_pass, inputs_for
from tiledsl.passes.lower_tile_ops import LowerTileOps

WHOLE = "{shape = (8, 16), source_axes = (0, 1), target_axes = (0, 1)}"


def lowered(parameters: str, body: str) -> list[str]:
    return after(LowerTileOps(), body, parameters=parameters)


def test_a_copy_from_global_memory_is_a_load_of_offset_plus_iota() -> None:
    body = f"""
    %s = tile.alloc : buffer<8*16*float32, shared>
    %m = arith.mul %bx, %c8 : int32
    tile.copy %A[%m, %c0], %s {WHOLE}"""
    filecheck(
        lowered("A: 40*64*float16", body),
        """
        %s = tile.alloc : buffer<8*16*float32, shared>
        %m = arith.mul %bx, %c8 : int32
        %0 = tensor.iota {axis = 0} : tensor<8x1xint32>
        %1 = arith.add %m, %0 : tensor<8x1xint32>
        %2 = tensor.iota {axis = 1} : tensor<1x16xint32>
        %A_1 = tile.load %A[%1, %2] : tensor<8x16xfloat16>
        %s_1 = arith.cast %A_1 : tensor<8x16xfloat32>
        tile.write %s_1, %s
        """,
    )


def test_copies_of_one_region_share_their_indices() -> None:
    copy = f"tile.copy %A[%bx, %c0], %s {WHOLE}"
    body = f"""
    %s = tile.alloc : buffer<8*16*float16, shared>
    {copy}
    {copy}
    scf.for %c0, %c1, %c1 (%k: int32) {{ {copy} scf.yield }}"""
    filecheck(
        lowered("A: 40*64*float16", body)[1:],
        """
        %0 = tensor.iota {axis = 0} : tensor<8x1xint32>
        %1 = arith.add %bx, %0 : tensor<8x1xint32>
        %2 = tensor.iota {axis = 1} : tensor<1x16xint32>
        %s_1 = tile.load %A[%1, %2] : tensor<8x16xfloat16>
        tile.write %s_1, %s
        %s_2 = tile.load %A[%1, %2] : tensor<8x16xfloat16>
        tile.write %s_2, %s
        scf.for %c0, %c1, %c1 (%k: int32) {
        %3 = tensor.iota {axis = 0} : tensor<8x1xint32>
        %4 = arith.add %bx, %3 : tensor<8x1xint32>
        %5 = tensor.iota {axis = 1} : tensor<1x16xint32>
        %s_3 = tile.load %A[%4, %5] : tensor<8x16xfloat16>
        tile.write %s_3, %s
        scf.yield
        }
        """,
    )


def test_a_gemm_reads_transposes_multiplies_and_writes() -> None:
    # float16 with float32: both float32. What is cleared is not read.
    body = """
    %a = tile.alloc : buffer<1*16*8*float16, shared>
    %b = tile.alloc : buffer<32*16*float32, shared>
    %c = tile.alloc : buffer<8*32*float32, fragment>
    tile.gemm %a, %b, %c {trans_a = true, trans_b = true, clear = true, precision = "ieee"}"""
    filecheck(
        lowered("A: 4*float16", body)[3:],
        """
        %a_1 = tile.read %a : tensor<1x16x8xfloat16>
        %a_2 = tensor.reshape %a_1 : tensor<16x8xfloat16>
        %a_t = tensor.transpose %a_2 {permutation = (1, 0)} : tensor<8x16xfloat16>
        %b_1 = tile.read %b : tensor<32x16xfloat32>
        %b_t = tensor.transpose %b_1 {permutation = (1, 0)} : tensor<16x32xfloat32>
        %a_t_1 = arith.cast %a_t : tensor<8x16xfloat32>
        %c_1 = tensor.dot %a_t_1, %b_t, %c0p0 {precision = "ieee"} : tensor<8x32xfloat32>
        tile.write %c_1, %c
        """,
    )


def test_a_gemm_of_tiles_with_a_leading_1_adds_to_a_matrix() -> None:
    body = """
    %a = tile.alloc : buffer<8*16*float16, shared>
    %b = tile.alloc : buffer<1*16*32*float16, shared>
    %c = tile.alloc : buffer<1*8*32*float32, fragment>
    tile.gemm %a, %b, %c
    tile.gemm %a, %b, %c {clear = true}"""
    filecheck(
        lowered("A: 4*float16", body)[3:],
        """
        %a_1 = tile.read %a : tensor<8x16xfloat16>
        %b_1 = tile.read %b : tensor<1x16x32xfloat16>
        %b_2 = tensor.reshape %b_1 : tensor<16x32xfloat16>
        %c_1 = tile.read %c : tensor<1x8x32xfloat32>
        %c_2 = tensor.reshape %c_1 : tensor<8x32xfloat32>
        %c_3 = tensor.dot %a_1, %b_2, %c_2 : tensor<8x32xfloat32>
        %c_4 = tensor.reshape %c_3 : tensor<1x8x32xfloat32>
        tile.write %c_4, %c
        %a_2 = tile.read %a : tensor<8x16xfloat16>
        %b_3 = tile.read %b : tensor<1x16x32xfloat16>
        %b_4 = tensor.reshape %b_3 : tensor<16x32xfloat16>
        %c_5 = tensor.dot %a_2, %b_4, %c0p0 : tensor<8x32xfloat32>
        %c_6 = tensor.reshape %c_5 : tensor<1x8x32xfloat32>
        tile.write %c_6, %c
        """,
    )


def test_what_is_written_has_the_name_of_its_buffer_unless_it_has_one_and_is_used() -> None:
    body = """
    %t = tile.alloc : buffer<float32, local>
    %u = tile.alloc : buffer<4*float32, local>
    tile.fill %f, %t
    %x = tile.load %A[%c0] : float32
    tile.fill %x, %t
    %y = arith.mul %x, %x : float32
    tile.fill %y, %t
    %0 = arith.mul %y, %x : float32
    tile.fill %0, %t
    %1 = arith.mul %0, %y : float32
    tile.fill %y, %u"""
    filecheck(
        lowered("A: 4*float32, f: float32", body)[2:],
        """
        tile.write %f, %t
        %x = tile.load %A[%c0] : float32
        tile.write %x, %t
        %y = arith.mul %x, %x : float32
        tile.write %y, %t
        %t_1 = arith.mul %y, %x : float32
        tile.write %t_1, %t
        %0 = arith.mul %t_1, %y : float32
        %u_1 = tensor.broadcast %y : tensor<4xfloat32>
        tile.write %u_1, %u
        """,
    )


def test_a_sort_gives_places_too_and_sorts_truth_values_as_integers() -> None:
    head = "%i = tile.alloc : buffer<4*8*int32, fragment> "
    for dtype, sort in (("int8", "{axis = 0}"), ("bool", "{axis = 1, descending = true}")):
        head += f"%{dtype} = tile.alloc : buffer<4*8*{dtype}, fragment> tile.sort %{dtype}, %{dtype}, %i {sort} "
    filecheck(
        lowered("A: 4*float32", head)[2:],
        """
        %int8_1 = tile.read %int8 : tensor<4x8xint8>
        %int8_2, %i_1 = tensor.sort %int8_1 {axis = 0} : tensor<4x8xint8>, tensor<4x8xint32>
        tile.write %int8_2, %int8
        tile.write %i_1, %i
        %bool = tile.alloc : buffer<4*8*bool, fragment>
        %bool_1 = tile.read %bool : tensor<4x8xbool>
        %bool_2 = arith.cast %bool_1 : tensor<4x8xint32>
        %bool_3, %i_2 = tensor.sort %bool_2 {axis = 1, descending = true} : tensor<4x8xint32>, tensor<4x8xint32>
        %bool_4 = arith.cast %bool_3 : tensor<4x8xbool>
        tile.write %bool_4, %bool
        tile.write %i_2, %i
        """,
    )


@pytest.mark.parametrize(
    ("types", "dtypes"),
    [
        (("float16", "float8_e4m3fn"), ["float16", "float16"]),
        (("float8_e4m3fn", "float16"), ["float16", "float16"]),
        (("float8_e4m3fn", "float8_e5m2"), ["float8_e4m3fn", "float8_e5m2"]),  # legalize-arith converts these
        (("int8", "uint8"), ["int8", "uint8"]),
        (("int8", "float16"), ["int8", "float16"]),
        (("float16", "int8"), ["float16", "int8"]),
        (("float16", "bfloat16"), ["float32", "float32"]),
    ],
)
def test_operands_of_two_types_are_multiplied_in_one_that_holds_both(types: tuple[str, str], dtypes: list[str]) -> None:
    a, b = types
    total = "int32" if b == "uint8" else "float32"
    made = lowered(
        "A: 4*float16",
        f"""%a = tile.alloc : buffer<16*16*{a}, shared> %b = tile.alloc : buffer<16*16*{b}, shared>
            %c = tile.alloc : buffer<16*16*{total}, fragment> tile.gemm %a, %b, %c {{clear = true}}""",
    )
    (operands,) = (re.findall(r"%\w+", line)[1:3] for line in made if "tensor.dot" in line)
    types_of = {line.split(" ")[0]: line.rpartition("x")[2].removesuffix(">") for line in made if " = " in line}
    assert [types_of[each] for each in operands] == dtypes


@pytest.mark.parametrize(("shape", "ours", "theirs"), [("9,", "1,", "2,"), ("1, 9", "0, 1", "1, 2")])
def test_a_tile_with_dimensions_of_1_is_loaded_and_stored_in_its_own_shape(shape: str, ours: str, theirs: str) -> None:
    # Without a reshape, for which Triton would exchange elements between threads.
    body = f"""
    %t = tile.alloc : buffer<1*9*float32, fragment>
    tile.copy %A[%bx, %c2, %c0], %t {{shape = ({shape}), source_axes = ({theirs}), target_axes = ({ours})}}
    tile.copy %t, %B[%bx, %c2, %c0] {{shape = ({shape}), source_axes = ({ours}), target_axes = ({theirs})}}"""
    filecheck(
        lowered("A: 3*5*9*float32, B: 3*5*9*float32", body)[1:],
        """
        %0 = tensor.iota {axis = 1} : tensor<1x9xint32>
        %t_1 = tile.load %A[%bx, %c2, %0] : tensor<1x9xfloat32>
        tile.write %t_1, %t
        %t_2 = tile.read %t : tensor<1x9xfloat32>
        tile.store %t_2, %B[%bx, %c2, %0]
        """,
    )


@pytest.mark.parametrize(("shape", "axes"), [("9,", "1,"), ("1, 9", "0, 1")])
def test_a_tile_with_dimensions_of_1_is_copied_in_its_own_shape(shape: str, axes: str) -> None:
    body = f"""
    %t = tile.alloc : buffer<1*9*float16, fragment>
    %u = tile.alloc : buffer<1*9*float32, fragment>
    tile.copy %t, %u {{shape = ({shape}), source_axes = ({axes}), target_axes = ({axes})}}"""
    filecheck(
        lowered("A: 3*float32", body)[2:],
        """
        %t_1 = tile.read %t : tensor<1x9xfloat16>
        %u_1 = arith.cast %t_1 : tensor<1x9xfloat32>
        tile.write %u_1, %u
        """,
    )


def test_the_value_outside_is_of_global_memory() -> None:
    body = """%t = tile.alloc : buffer<4*float32, shared> %u = tile.alloc : buffer<2*float32, shared>
      tile.copy %A[%c1], %u {shape = (2,), source_axes = (0,), target_axes = (0,), safe_value = 2.0}
      tile.copy %t[%c1], %u {shape = (2,), source_axes = (0,), target_axes = (0,), safe_value = 2.0}"""
    loads = [line for line in lowered("A: 9*float32", body) if "tile.load" in line]
    filecheck(
        loads,
        """
        %u_1 = tile.load %A[%1] other=%c2p0 : tensor<2xfloat32>
        %u_2 = tile.load %t[%1] : tensor<2xfloat32>
        """,
    )


COPIES = {
    "chip_ones": """%t = tile.alloc : buffer<1*7*float32, shared> %u = tile.alloc : buffer<7*float32, shared>
        tile.copy %A[%bx, %c2, %c0], %t {shape = (7,), source_axes = (2,), target_axes = (1,)}
        tile.copy %t, %u {shape = (7,), source_axes = (1,), target_axes = (0,)}
        tile.copy %u, %t {shape = (7,), source_axes = (0,), target_axes = (1,)}
        tile.copy %t, %B[%bx, %c1, %c0] {shape = (7,), source_axes = (1,), target_axes = (2,)}""",
    "element_rows": """%t = tile.alloc : buffer<8*float32, shared>
        tile.copy %A[%c1, %bx, %c3], %t {shape = (8,), source_axes = (2,), target_axes = (0,)}
        tile.copy %t, %B[%c2, %bx, %c0] {shape = (8,), source_axes = (0,), target_axes = (2,)}""",
    "transposing": """%t = tile.alloc : buffer<5*3*float32, shared>
        tile.copy %A[%c0, %c0, %c0], %t {shape = (3, 5), source_axes = (1, 2), target_axes = (1, 0)}
        tile.copy %t, %B[%c0, %c0, %c1] {shape = (5, 3), source_axes = (0, 1), target_axes = (2, 1)}""",
    "kept_ones": """%t = tile.alloc : buffer<1*3*1*7*float32, fragment>
        tile.copy %A[%bx, %c0, %c0], %t {shape = (3, 7), source_axes = (1, 2), target_axes = (1, 3)}
        tile.copy %t[%c0, %c0, %c0, %c0], %B[%bx, %c0, %c0]
          {shape = (3, 7), source_axes = (1, 3), target_axes = (1, 2)}""",
    "ones_in_tile": """%t = tile.alloc : buffer<1*7*float32, fragment>
        tile.copy %A[%bx, %c2, %c0], %t {shape = (1, 7), source_axes = (1, 2), target_axes = (0, 1)}
        tile.copy %t, %B[%bx, %c1, %c0] {shape = (1, 7), source_axes = (0, 1), target_axes = (1, 2)}""",
    "transposing_with_ones": """%t = tile.alloc : buffer<5*1*3*float32, fragment>
        tile.copy %A[%c0, %c0, %bx], %t {shape = (3, 5), source_axes = (0, 1), target_axes = (2, 0)}
        tile.copy %t, %B[%c0, %c0, %bx] {shape = (5, 3), source_axes = (0, 2), target_axes = (1, 0)}""",
    "rotating": """%t = tile.alloc : buffer<5*9*3*float32, fragment>
        tile.copy %A, %t {shape = (3, 5, 9), source_axes = (0, 1, 2), target_axes = (2, 0, 1)}
        tile.copy %t, %B {shape = (3, 5, 9), source_axes = (2, 0, 1), target_axes = (0, 1, 2)}""",
    "one_element": """%t = tile.alloc : buffer<1*1*float32, fragment>
        tile.copy %A[%bx, %c2, %c0], %t {shape = (1, 1), source_axes = (1, 2), target_axes = (0, 1)}
        tile.copy %t, %B[%bx, %c1, %c5] {shape = (1, 1), source_axes = (0, 1), target_axes = (1, 2)}""",
    "no_axes": """%t = tile.alloc : buffer<float32, local>
        tile.copy %A[%bx, %c2, %c0], %t {shape = (), source_axes = (), target_axes = ()}
        tile.copy %t, %B[%bx, %c1, %c5] {shape = (), source_axes = (), target_axes = ()}""",
    "chip_slices": """%t = tile.alloc : buffer<4*8*float32, shared> %u = tile.alloc : buffer<4*4*float32, shared>
        tile.fill %c0.5, %t
        tile.copy %A[%c0, %c0, %c0], %t {shape = (4, 8), source_axes = (1, 2), target_axes = (0, 1)}
        tile.copy %t[%c0, %c4], %u {shape = (4, 4), source_axes = (0, 1), target_axes = (0, 1)}
        tile.copy %u[%bx, %c1], %t[%bx, %c3] {shape = (2, 2), source_axes = (0, 1), target_axes = (0, 1)}
        tile.copy %t, %B[%c1, %c0, %c0] {shape = (4, 8), source_axes = (0, 1), target_axes = (1, 2)}""",
    "dynamic_chip_slices": """%t = tile.alloc : buffer<4*8*float32, shared> %o = arith.mul %bx, %c3 : int32
        tile.copy %A[%c0, %c0, %c0], %t {shape = (4, 8), source_axes = (1, 2), target_axes = (0, 1)}
        tile.copy %t[%c0, %c1], %t[%c0, %o] {shape = (4, 4), source_axes = (0, 1), target_axes = (0, 1)}
        tile.copy %t, %B[%c1, %c0, %c0] {shape = (4, 8), source_axes = (0, 1), target_axes = (1, 2)}""",
    "global_to_global": """tile.copy %A[%c0, %c0, %c2], %B[%c1, %c1, %c0]
        {shape = (3, 9), source_axes = (1, 2), target_axes = (1, 2)}""",
    "safe_value": """%t = tile.alloc : buffer<8*16*float32, shared>
        tile.copy %A[%c0, %c1, %c-2], %t {shape = (8, 16), source_axes = (1, 2), target_axes = (0, 1), safe_value = 2.0}
        tile.copy %t[%c0, %c0], %B[%c0, %c0, %c0] {shape = (5, 9), source_axes = (0, 1), target_axes = (1, 2)}""",
    "fill_global": "tile.fill %c3.0, %B",
}


@pytest.mark.parametrize("name", COPIES)
def test_copies(name: str) -> None:
    to_values(kernel("A: 3*5*9*float32, B: 3*5*9*float32", COPIES[name]))


REDUCTIONS = [
    ("sum", "float32", True, "4"), ("sum", "float32", False, "4"), ("max", "float32", False, "4*1"),
    ("min", "float32", True, "4*1"), ("abssum", "float32", False, "4"), ("absmax", "float16", True, "4"),
    ("and", "int32", False, "4"), ("or", "int32", True, "4"), ("xor", "int32", False, "4"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype", "clear", "shape"), REDUCTIONS)
def test_reductions(kind: str, dtype: str, clear: bool, shape: str) -> None:
    whole = (
        "{shape = (4, 1), source_axes = (0, 1), target_axes = (0, 1)}"
        if "*" in shape
        else "{shape = (4,), source_axes = (0,), target_axes = (0,)}"
    )
    func = kernel(
        f"A: 4*8*{dtype}, B: {shape}*{dtype}",
        f"""%t = tile.alloc : buffer<4*8*{dtype}, fragment> %r = tile.alloc : buffer<{shape}*{dtype}, fragment>
            tile.copy %A, %t {{shape = (4, 8), source_axes = (0, 1), target_axes = (0, 1)}} tile.copy %B, %r {whole}
            tile.reduce %t, %r {{kind = "{kind}", axis = 1, clear = {str(clear).lower()}}}
            tile.copy %r, %B {whole}""",
    )
    to_values(func)


@pytest.mark.parametrize("narrow", ["float16", "int8"])
def test_a_reduction_is_computed_in_the_wider_type(narrow: str) -> None:
    wide = "float32" if narrow == "float16" else "int32"
    for source, target, lines in (
        (wide, narrow, ["tile.read", f"tensor.reduce {{{{.*}}}} : tensor<4x{wide}>", f": tensor<4x{narrow}>"]),
        (narrow, wide, ["tile.read", f": tensor<4x8x{wide}>", f"tensor.reduce {{{{.*}}}} : tensor<4x{wide}>"]),
        ("int32", "float32", ["tile.read", ": tensor<4x8xfloat32>", "tensor.reduce {{.*}} : tensor<4xfloat32>"]),
    ):
        body = f"""%t = tile.alloc : buffer<4*8*{source}, fragment> %r = tile.alloc : buffer<4*{target}, fragment>
            tile.reduce %t, %r {{kind = "sum", axis = 1, clear = true}}"""
        filecheck(
            lowered("A: 4*float32", body)[2:],
            "\n".join([f"CHECK: {lines[0]}", *(f"CHECK-NEXT: {{{{.*}}}}{each}" for each in lines[1:])]),
        )


@pytest.mark.parametrize("kind", ["max", "min", "absmax"])
def test_a_reduction_to_one_element_and_its_nans(kind: str) -> None:
    func = kernel(
        "A: 8*float32, B: 1*float32, C: 1*float32",
        f"""%t = tile.alloc : buffer<8*float32, fragment> %r = tile.alloc : buffer<1*float32, fragment>
           tile.copy %A, %t {{shape = (8,), source_axes = (0,), target_axes = (0,)}}
           tile.copy %C, %r {{shape = (1,), source_axes = (0,), target_axes = (0,)}}
           tile.reduce %t, %r {{kind = "{kind}", axis = 0, clear = false, propagate_nan = true}}
           tile.copy %r, %B {{shape = (1,), source_axes = (0,), target_axes = (0,)}}""",
    )
    for position in (None, (0, 3), (2, 0)):  # in the tile, and in what was there before
        inputs = inputs_for(func)
        if position is not None:
            inputs[position[0]][position[1]] = np.nan
        check_pass(LowerTileOps(), func, inputs)


def test_a_scan_multiplies_by_factors() -> None:
    body = """%t = tile.alloc : buffer<4*8*float32, fragment> %g = tile.alloc : buffer<4*8*float32, fragment>
      tile.scan %t, %t factors=%g {kind = "linear", axis = 1}"""
    filecheck(
        lowered("A: 4*float32", body)[2:],
        """
        %t_1 = tile.read %t : tensor<4x8xfloat32>
        %g_1 = tile.read %g : tensor<4x8xfloat32>
        %t_2 = tensor.scan %t_1 factors=%g_1 {kind = "linear", axis = 1} : tensor<4x8xfloat32>
        tile.write %t_2, %t
        """,
    )


@pytest.mark.parametrize("reverse", ["true", "false"])
def test_scans(reverse: str) -> None:
    to_values(
        kernel(
            "A: 4*8*float16, B: 4*8*float32",
            f"""%t = tile.alloc : buffer<4*8*float16, fragment> %r = tile.alloc : buffer<4*8*float32, fragment>
                tile.copy %A, %t {{shape = (4, 8), source_axes = (0, 1), target_axes = (0, 1)}}
                tile.scan %t, %r {{kind = "sum", axis = 1, reverse = {reverse}}}
                tile.scan %r, %r {{kind = "max", axis = 0}}
                tile.copy %r, %B {{shape = (4, 8), source_axes = (0, 1), target_axes = (0, 1)}}""",
        )
    )

"""Hazards in what Triton made of a kernel: how they are found, and what is done about them."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.support.hazard_programs import PROGRAMS
from tiledsl.codegen import expressions
from tiledsl.codegen.gluon import api
from tiledsl.dialects.tensor import GatherOp
from tiledsl.runtime import compile as compiling
from tiledsl.runtime import hazards
from tiledsl.runtime.compile import CompileError, guard, unharmed
from tiledsl.runtime.resources import run_tool
from tiledsl.runtime.rings import Overwritten, overwritten_tiles
from tiledsl.runtime.target import Target

HOPPER = Target("cuda", 90)
OUTPUT: dict[str, Any] = {"capture_output": True, "text": True, "check": True}
BLOCKED = "sizePerThread = [1, 1], threadsPerWarp = [4, 8], warpsPerCTA = [1, 1], order = [1, 0]"
COLUMN = """#blocked = #ttg.blocked<{LAYOUT}>
    %1 = "tt.scan"(%0) <{axis = 0 : i32, reverse = false}> ({
    ^bb0(%a: f32, %b: f32):
      tt.scan.return %a : f32
    }) : (tensor<SHAPExf32, #blocked>) -> tensor<SHAPExf32, #blocked>
""".replace("LAYOUT", BLOCKED)
LANES = """#linear = #ttg.linear<{register = [], lane = [LANE], warp = [[0, 0], [0, 0]], block = []}>
    %1 = "tt.reduce"(%0) <{axis = 0 : i32}> ({
    ^bb0(%a: i32, %b: i32):
      tt.reduce.return %a : i32
    }) : (tensor<16x2xi32, #linear>) -> tensor<2xi32, #ttg.slice<{dim = 0, parent = #linear}>>
"""


@pytest.mark.parametrize(
    "shape, wrong",
    [("4x8", False), ("4x16", False), ("4x2", False), ("4x1", True), ("8x8", False), ("8x4", True), ("16x2", True)],
)
def test_scans_beside_a_dimension_without_threads(shape: str, wrong: bool) -> None:
    found = hazards.layout_hazards(COLUMN.replace("SHAPE", shape))
    assert found == ([("scan-beside-ones", f"tensor<{shape}xf32, #blocked>")] if wrong else [])


@pytest.mark.parametrize(
    "lanes, wrong",
    [
        ("[1, 0], [2, 0], [4, 0], [8, 0], [0, 1]", False),
        ("[0, 1], [4, 0], [8, 0], [1, 0], [2, 0]", False),
        ("[4, 0], [8, 0], [0, 1], [1, 0], [2, 0]", True),
        ("[1, 0], [2, 0], [0, 0], [4, 0], [8, 0]", True),
        ("[0, 1], [0, 0], [0, 0], [0, 0], [0, 0]", False),
    ],
)
def test_reductions_across_lanes_that_are_no_neighbours(lanes: str, wrong: bool) -> None:
    assert bool(hazards.layout_hazards(LANES.replace("LANE", lanes))) == wrong


MACHINE_CODE = {
    "float8-pair-twice": (
        "cvt.rn.satfinite.e4m3x2.f32  %rs1, %r1, %r1; ",
        "F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R3, R12, R12, R1 ;",
        "F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R3, R12, R12, RZ ;",
    ),
    "add-of-16-bit-pairs": ("add.s16x2 	%r1, %r2, %r3;", "VIADD.16x2 R27, R14, 0x0 ;", "VIADD.16x2 R8, R8, 0x40004 ;"),
    "maximum-of-negated": (
        "neg.s32 	%r2, %r3;\nmax.s32 	%r4, %r1, %r2;", "VIMNMX3 R9, R7, R9, R8, !PT ;", "VIMNMX R8, R8, R11, !PT ;",
    ),
    "constant-from-float8": (
        "cvt.rn.f16x2.e5m2x2 %r28, %rs17;",
        "F2FP.F16.E5M2.UNPACK_B R16, 5.6051938572992682837e-44 ;",
        "F2FP.F16.E5M2.UNPACK_B R8, R14.H1 ;",
    ),
    "carry-of-mulhi": (
        "mul.hi.u32 	%r1, %r2, 1431655766;\ncvt.u64.u32 	%rd1, %r1;\nsub.s64 	%rd3, %rd1, %rd2;",
        "IMAD.HI.U32 R6, P1, R5, 0x55555556, R6 ;", "IMAD.HI.U32 R16, R13, 0x2, RZ ;",
    ),
    "unused-half-of-predicates": (
        "and.pred \t%p16, %p15, %p12;\nor.pred \t%p17, %p12, %p15;",
        "PLOP3.LUT P1, PT, !P1, PT, P2, 0x80, 0xc8 ;", "PLOP3.LUT P1, P3, !P1, PT, P2, 0x80, 0xc8 ;",
    ),
    "halves-of-descriptor": (
        "or.b64 %rd1, %rd9, 4611686293305294848;\nadd.s64 %rd2, %rd9, -9223371899415822272;",
        "UIADD3 UR34, UP0, UR37, 0x40, URZ ;\nUIADD3.X UR35, UR37, -0x7fffffe0, URZ, UP0, !UPT ;",
        "UIADD3 UR34, UP0, UR37, 0x40, URZ ;\nUMOV UR37, URZ ;\nUIADD3.X UR35, UR37, -0x7fffffe0, URZ, UP0, !UPT ;",
    ),
    "saturating-product": (
        "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 { %r5 }",
        "IMMA.16832.S8.S8.SAT R4, R4.ROW, R20.COL, R12 ;", "IMMA.16832.S8.S8 R4, R4.ROW, R20.COL, R12 ;",
    ),
}  # fmt: skip


OF_ALL_PTXAS = ("carry-of-mulhi", "unused-half-of-predicates", "saturating-product")
UNREAD = """
    and.pred \t%p3, %p1, %p2;
    selp.b32 \t%r2, 1, 0, %p3;
    shfl.sync.bfly.b32 \t%r3, %r2, 4, 31, -1;
    max.s32 \t%r4, %r2, %r3;
    shfl.sync.bfly.b32 \t%r5, %r4, 2, 31, -1;
"""


@pytest.mark.parametrize("second, wrong", [("8f", False), ("0", False), ("f8", True), ("8", True)])
def test_tables_of_unused_predicates_on_blackwell(second: str, wrong: bool) -> None:
    ptx = MACHINE_CODE["unused-half-of-predicates"][0]
    sass = f"PLOP3.LUT P1, PT, P2, P1, PT, 0xf8, 0x{second} ;\nPLOP3.LUT P0, PT, P0, PT, PT, 0x80, 0x8 ;"
    assert hazards.machine_code_hazards({"ptx": ptx, "sass": sass}) == ["unused-half-of-predicates"] * wrong


def test_what_nobody_reads_is_taken_from_ptx() -> None:
    kept = "    or.pred \t%p4, %p1, %p2;\n    ld.global.b32 \t%r9, [%rd1];\n    @%p4 st.global.b32 \t[%rd1], %r6;\n"
    assert hazards.repaired(UNREAD + kept, ["unused-half-of-predicates"]) == "\n" + kept
    read = UNREAD + kept.replace("%r6", "%r5")
    assert hazards.repaired(read, ["unused-half-of-predicates"]) == read


def test_a_stack_pointer_in_place_of_halves_of_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hazards, "_ptxas_version", lambda: (12, 9))
    ptx, sass = "cvt.rn.satfinite.e4m3x2.f16x2 %rs15, %r33;", "LOP3.LUT R17, R1, 0xffff, RZ, 0xc0, !PT ;"
    assert hazards.machine_code_hazards({"ptx": ptx, "sass": sass}) == ["float8-pair-twice"]
    assert hazards.machine_code_hazards({"ptx": ptx, "sass": sass.replace("R1,", "R21,")}) == []


FIRST = "F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R7, R9, R2.reuse, RZ ;"
MERGED = "F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R8, R2, R2, R7 ;"
OTHER = "IMAD.MOV.U32 R3, RZ, RZ, R4 ;"


@pytest.mark.parametrize(
    "lines, right",
    [
        ([FIRST, OTHER, MERGED.replace("R8", "R7"), "BRA `(.L_x_0) ;"], True),
        ([FIRST, OTHER, MERGED, "STG.E desc[UR4][R4.64], R8 ;", "EXIT ;"], True),
        ([FIRST, MERGED, "IMAD.MOV.U32 R7, RZ, RZ, R4 ;", "BRA `(.L_x_0) ;"], True),
        ([FIRST, MERGED, "BRA `(.L_x_0) ;"], False),  # who knows who reads it there
        ([FIRST, MERGED, "STG.E desc[UR4][R4.64], R7 ;", "EXIT ;"], False),  # it was made for this
        ([FIRST, MERGED, "STG.E.64 desc[UR4][R4.64], R6 ;", "EXIT ;"], False),
        ([FIRST, "IADD3 R3, R7, R4, RZ ;", MERGED, "EXIT ;"], False),
        ([FIRST, "LDG.E.128 R4, desc[UR4][R2.64] ;", MERGED, "EXIT ;"], False),  # another value lies there
        ([FIRST, ".L_x_1:", MERGED, "EXIT ;"], False),
        (["@P0 " + FIRST, MERGED, "EXIT ;"], False),
        (["IMAD.MOV.U32 R7, RZ, RZ, R4 ;", MERGED, "EXIT ;"], False),
        ([MERGED, "EXIT ;"], False),
    ],
)
def test_what_a_conversion_to_float8_may_be_merged_with(
    lines: list[str], right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hazards, "_ptxas_version", lambda: (12, 8))
    places = [line if line[0] == "." else f"        /*{16 * n:04x}*/  {line}" for n, line in enumerate(lines)]
    asm = {"ptx": MACHINE_CODE["float8-pair-twice"][0], "sass": "\n".join(places)}
    assert hazards.machine_code_hazards(asm) == ([] if right else ["float8-pair-twice"])


def test_repaired_ptx_converts_the_same_numbers() -> None:
    ptx = "\tcvt.rn.satfinite.e5m2x2.f32  %rs4, %r2, %r1; \n\tmov.b32 \t%r3, {%rs4, %rs4};\n"
    repaired = hazards.without_merges(ptx)
    assert "cvt.rn.satfinite.e5m2x2.f32  %half, %r2, %r1; cvt.u32.u16 %word, %half;" in repaired
    assert "cvt.u16.u32 %rs4, %word; }" in repaired and repaired.endswith(ptx.split("; ")[1])
    assert hazards.without_merges(repaired) == repaired


PAIR = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 .ptr .global .align 4 p0)
.reqntid 32
{
.reg .b16 %rs<4>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
ld.param.b64 %rd1, [p0];
ld.global.b32 %r1, [%rd1];
cvt.rn.satfinite.e4m3x2.f32 %rs1, %r1, %r1;
STORE
ret;
}
"""


@pytest.mark.parametrize(
    "store",
    [
        "mov.b32 %r3, {%rs1, %rs1}; st.global.b32 [%rd1], %r3;",
        "st.global.v2.b16 [%rd1], {%rs1, %rs1};",
        "cvt.rn.satfinite.e4m3x2.f32 %rs2, %r1, %r1; mov.b32 %r3, {%rs1, %rs2}; st.global.b32 [%rd1], %r3;",
    ],
)
def test_ptxas_merges_a_pair_of_float8_with_nothing_but_itself(store: str, tmp_path: Path) -> None:
    from triton import knobs

    def machine_code(ptx: str) -> dict[str, Any]:
        (tmp_path / "k.ptx").write_text(ptx)
        command = [knobs.nvidia.ptxas.path, "--gpu-name=sm_90a", str(tmp_path / "k.ptx"), "-o", str(tmp_path / "k.o")]
        subprocess.run(command, check=True, timeout=60)
        return {"ptx": ptx, "sass": run_tool("nvdisasm", ["-c"], (tmp_path / "k.o").read_bytes())}

    ptx = PAIR.replace("STORE", store)
    if hazards._ptxas_version() < hazards.RIGHT_PTXAS:
        assert hazards.machine_code_hazards(machine_code(ptx)) == ["float8-pair-twice"]
    sass = machine_code(hazards.without_merges(ptx))["sass"]
    assert "MERGE_C" in sass and not re.search(r"MERGE_C[^;]*, R\d+ ;", sass)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_words_of_alike_pairs_are_packed_apart(kind: str, tmp_path: Path, triton36: str) -> None:
    tools = Path(subprocess.run([triton36, "-c", "import triton; print(triton.__file__)"], **OUTPUT).stdout).parent
    texts = re.findall(r'gl.constexpr\(((?:\s*"[^"]*"\n)+)\)', api.words(kind, True))
    for text, right in zip(texts, (False, True), strict=True):
        body = re.sub(r"\$\d", "%r1", "".join(re.findall('"([^"]*)"', text)).replace("$0", "%r3"))
        store = f"{body} st.global.b32 [%rd1], %r3;"
        (tmp_path / "k.ptx").write_text(re.sub(r"cvt.*\nSTORE", lambda _: store, PAIR))
        binaries = tools / "backends" / "nvidia" / "bin"
        subprocess.run([binaries / "ptxas", "--gpu-name=sm_90a", "k.ptx", "-o", "k.o"], cwd=tmp_path, check=True)
        sass = subprocess.run([binaries / "nvdisasm", "-c", "k.o"], cwd=tmp_path, **OUTPUT).stdout
        assert "MERGE_C" in sass and (re.search(r"MERGE_C[^;]*, R\d+ ;", sass) is None) == right, sass


@pytest.mark.parametrize("name", MACHINE_CODE)
def test_machine_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ptx, wrong, right = MACHINE_CODE[name]
    monkeypatch.setattr(hazards, "_ptxas_version", lambda: (12, 8))
    assert hazards.machine_code_hazards({"ptx": ptx, "sass": wrong}) == [name]
    assert hazards.machine_code_hazards({"ptx": ptx, "sass": None}) == [name]  # no tool says otherwise
    assert hazards.machine_code_hazards({"ptx": ptx, "sass": right}) == []
    assert hazards.machine_code_hazards({"ptx": "", "sass": wrong}) == []
    monkeypatch.setattr(hazards, "_ptxas_version", lambda: (13, 4))
    assert hazards.machine_code_hazards({"ptx": ptx, "sass": wrong}) == [name] * (name in OF_ALL_PTXAS)


def test_products_of_integers_wrap() -> None:
    kernel = tiledsl.compile(PROGRAMS["product_at_the_ends_of_int32"].program, target="cuda:80")
    assert ".row.col.s32.s8.s8.s32" in kernel.asm["ptx"] and "satfinite" not in kernel.asm["ptx"]
    assert re.findall(r"IMMA\.[\w.]*", kernel.asm["sass"]) == ["IMMA.16832.S8.S8"] * 2


def test_a_loop_that_would_lose_a_product_is_not_unrolled(caplog: pytest.LogCaptureFixture) -> None:
    kernel = tiledsl.compile(PROGRAMS["scores_beside_products"].program, target="cuda:90")
    assert kernel.asm["ptx"].count('.pragma "nounroll";') == 1 and not hazards.machine_code_hazards(kernel.asm)
    products = re.findall(r"HGMMA\S* \S+ ", kernel.asm["sass"])
    assert len(products) == kernel.asm["ptx"].count("wgmma.mma_async") == 3


@pytest.mark.parametrize(
    ("sass", "wrong"),
    [
        ("UIADD3 UR8, UP1, UR4, 0x4, URZ ;\nUIADD3 UR9, UP0, UR5, 0x2 ;\nUIADD3.X UR7, UR4, 0x8, URZ, UP1 ;", True),
        ("UIADD3 UR8, UP1, UR4, 0x40, URZ ;\nUIADD3.X UR9, UR5, 0x40, URZ, UP1, !UPT ;", False),
        ("UIADD3 UR8, UP1, UR4, 0x40, URZ ;\nUIADD3.X UR9, UR4, 0x40, URZ, UP0, !UPT ;", False),
        ("UIADD3 UR4, UP1, UR4, 0x40, URZ ;\nUIADD3.X UR9, UR4, 0x40, URZ, UP1, !UPT ;", True),
        ("UIADD3 UR8, UP1, UR4, 0x40, URZ ;\nULDC.64 UR2, c[0x0] ;\nUIADD3.X UR9, UR4, 0x40, URZ, UP1, !UPT ;", False),
        ("UIADD3 UR8, UR4, 0x40, URZ ;\nUIADD3.X UR9, UR4, 0x40, URZ, UP1, !UPT ;", False),
    ],
)  # fmt: skip
def test_sums_of_one_half(sass: str, wrong: bool) -> None:
    assert hazards._adds_one_half_twice(sass) == wrong


def test_descriptors_are_added_up_by_halves() -> None:
    sum = "add.s64 \t%rd2, %rd1, -9223371899415822272;"
    others = "\nadd.s64 \t%rd3, %rd1, 64;\nwgmma.mma_async {%r1}, %rd1, %rd2, 0, 1;\n"
    halves = (
        "{ .reg .b32 %low, %high; mov.b64 {%low, %high}, %rd1; add.cc.u32 %low, %low, 64; "
        "addc.u32 %high, %high, 2147483680; mov.b64 %rd2, {%low, %high}; }"
    )
    assert hazards.repaired(sum + others, ["halves-of-descriptor"]) == halves + others
    assert not hazards._describes_two_tiles(sum + others)
    assert (-9223371899415822272 & (1 << 64) - 1) == 2147483680 << 32 | 64


def test_loops_alone_are_not_unrolled() -> None:
    ptx = "$L__BB0_1:  // a loop\n\t@%p1 bra $L__BB0_3;\n\tbra.uni $L__BB0_1;\n$L__BB0_3:\n\tret;\n"
    marked = ptx.replace("a loop\n", 'a loop\n\t.pragma "nounroll";\n')
    assert hazards.repaired(ptx, ["lost-product"]) == marked
    assert hazards.repaired(ptx, []) == ptx


def made_by(*levels: str) -> Any:
    """Compiles; what it makes is wrong unless ptxas is told one of these levels."""
    asked: list[Any] = []

    def make(options: Any) -> Any:
        asked.append(options)
        right = options.get("ptx_options", "") in [f"--opt-level {level}" for level in levels]
        ptx, wrong, good = MACHINE_CODE["carry-of-mulhi"]
        return SimpleNamespace(asm={"ptx": ptx, "sass": good if right else wrong, "ttgir": ""}, asked=asked)

    return make


@pytest.mark.parametrize("levels, tries", [(("1", "0"), 2), (("0",), 3)])
def test_a_kernel_with_a_mistake_of_ptxas_is_compiled_with_less_of_it(levels: tuple[str, ...], tries: int) -> None:
    compiled = unharmed("k", HOPPER, made_by(*levels))
    assert len(compiled.asked) == tries
    assert compiled.asked[-1] == {"ptx_options": f"--opt-level {levels[0] if tries == 2 else 0}"}
    assert not hazards.machine_code_hazards(compiled.asm)


def test_a_kernel_that_stays_wrong_is_refused() -> None:
    with pytest.raises(CompileError, match=r"k: ptxas makes wrong code \(carry-of-mulhi\)"):
        unharmed("k", HOPPER, made_by())


def test_a_layout_that_is_computed_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hazards, "_triton_version", lambda: (3, 6))
    compiled = SimpleNamespace(asm={"ttgir": COLUMN.replace("SHAPE", "4x1"), "ptx": ""})
    with pytest.raises(CompileError, match="k: this version of Triton computes wrongly with tensor<4x1xf32"):
        unharmed("k", HOPPER, lambda options: compiled)
    monkeypatch.setattr(hazards, "_triton_version", lambda: (3, 9))
    assert unharmed("k", HOPPER, lambda options: compiled) is compiled


PIPELINE = """
    scf.if %1 {
      %q = ttg.local_alloc : () -> !ttg.memdesc<COPIESx64x64xbf16, #shared, #smem, mutable>
      %q_1 = ttg.memdesc_index %q[%c0_i32] : !ttg.memdesc<COPIESx64x64xbf16> -> !ttg.memdesc<64x64xbf16, #shared>
      %token = ttg.async_copy_global_to_local %p, %q_1 : tensor<64x64x!tt.ptr<bf16>, #blocked> -> <64x64xbf16, #shared>
      %sum:2 = scf.for %i = %c0_i32 to %n step %c1_i32 iter_args(%acc = %cst) -> (tensor<64x64xf32, #mma>) : i32 {
        %q_2 = ttg.memdesc_index %q[%i] : !ttg.memdesc<COPIESx64x64xbf16, #shared> -> !ttg.memdesc<64x64xbf16, #shared>
        %q_t = ttg.memdesc_trans %q_2 {order = array<i32: 1, 0>} : !ttg.memdesc<64x64xbf16> -> !ttg.memdesc<64x64xbf16>
        %d = ttng.warp_group_dot %a, %q_t, %acc {inputPrecision = 0 : i32, isAsync = true} : tensor<64x64xf32, #mma>
        %w:2 = ttng.warp_group_dot_wait %d, %q_t {pendings = PENDING : i32} : tensor<64x64xf32, #mma>
        %q_3 = ttg.memdesc_index %q[%k] : !ttg.memdesc<COPIESx64x64xbf16, #shared> -> !ttg.memdesc<64x64xbf16, #shared>
        %token_1 = ttg.async_copy_global_to_local %p, %q_3 : tensor<64x64x!tt.ptr<bf16>> -> <64x64xbf16, #shared>
        scf.yield %w#0 : tensor<64x64xf32, #mma>
      }
    }
"""


@pytest.mark.parametrize(("copies", "pending", "wrong"), [(1, 1, True), (2, 1, False), (1, 0, False)])
@pytest.mark.parametrize("loops", [1, 2])
def test_copies_of_a_tile_that_products_read(copies: int, pending: int, wrong: bool, loops: int) -> None:
    """Two regions may use the same names, of which each knows its own."""
    region = PIPELINE.replace("COPIES", str(copies)).replace("PENDING", str(pending))
    found = list(overwritten_tiles("  tt.func public @k(%p: i32) {" + region * loops + "  }\n"))
    assert found == [Overwritten("%q", copies, 1)] * (loops * wrong)


def test_a_tile_that_a_product_may_not_have_read_yet_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tile is loaded once, Triton keeps one copy of what it loads one iteration ahead."""
    case = PROGRAMS["product_beside_sums"]
    ttgir = tiledsl.compile(case.program, target="cuda:90").asm["ttgir"]
    assert "isAsync = true" in ttgir and not list(overwritten_tiles(ttgir))
    monkeypatch.setattr("tiledsl.passes.pipeline_loops._load_apart", lambda *loop: None)
    for stages, copies in ((2, 1), (3, 2)):
        kernel = tiledsl.compile(case.program, target="cuda:90", pass_configs={"pipeline-loops.stages": stages})
        with pytest.raises(CompileError, match="overwritten while the product reads it") as caught:
            _ = kernel.asm
        assert caught.value.stage == "ttgir" and "num_stages=1" in caught.value.notes[0]
        with monkeypatch.context() as unguarded:
            unguarded.setattr("tiledsl.runtime.hazards.overwritten_tiles", lambda ttgir: [])
            ttgir = kernel.asm["ttgir"]
        assert [(each.copies, each.ahead) for each in overwritten_tiles(ttgir)] == [(copies, copies)]


def test_pointers_move_in_two_steps_past_a_quotient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    case = PROGRAMS["masked_element"]
    kernel = tiledsl.compile(case.program, target="cuda:90", pass_configs=dict(case.options))
    ptx = kernel.asm["ptx"]
    assert "mul.hi.u32" in ptx and not hazards._subtracts_from_mulhi(ptx)


# What Triton raises


@T.prim_func
def gathered(A: T.Tensor((8,), "float32"), O: T.Tensor((16,), "float32")):
    with T.Kernel(1, threads=128):
        t = T.alloc_fragment((8,), "float32")
        T.copy(A, t)
        for i in T.Parallel(16):
            O[i] = t[(i * 5 + 1) % 8]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tiledsl.Kernel:
    """A kernel whose source Triton refuses in the line of the gather."""
    handler = expressions._HANDLERS[GatherOp]
    text = lambda self, op: expressions.Expression(handler(self, op).text.replace("tl.gather", "tl.gathr"))
    monkeypatch.setitem(expressions._HANDLERS, GatherOp, text)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(compiling.tempfile, "tempdir", str(tmp_path))
    return tiledsl.compile(gathered, target="cuda:90")


def refused(error: CompileError, folder: Path) -> None:
    assert error.stage == "source" and "gathr" in error.message
    line = gathered.function.__code__.co_firstlineno + 6
    assert error.loc is not None and (error.loc.file, error.loc.line) == (__file__, line)
    (reproducer,) = folder.glob("tiledsl-gathered_kernel-*.py")
    assert f"python {reproducer} compiles it without tiledsl" in error.notes
    text = reproducer.read_text()
    assert "tl.gathr(" in text and "import tiledsl" not in text and "triton.compile(" in text
    compile(text, str(reproducer), "exec")


def test_an_error_of_triton_has_the_users_line_and_a_reproducer(broken: tiledsl.Kernel, tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        broken.compiled
    refused(caught.value, tmp_path)


def test_so_has_one_at_the_first_launch(
    broken: tiledsl.Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton
    from triton.compiler import ASTSource

    monkeypatch.setattr(type(broken), "check_runs_here", lambda self: None)
    function = broken.loaded.gathered_kernel

    def as_on_a_device() -> None:
        function.compile = triton.compile

    # What Triton's own binder would ask the driver for is not here.
    function.__dict__.pop("create_binder")
    function.create_binder, function.device_caches = as_on_a_device, defaultdict(as_on_a_device)
    guard(function, broken.target, lambda error: broken._located(broken._places[0], error))
    function.device_caches[0]
    source = ASTSource(function, {"A": "*fp32", "O": "*fp32"}, {}, {})
    with pytest.raises(CompileError) as caught:
        function.compile(source, target=HOPPER.triton_target(), options={"num_warps": 4})
    refused(caught.value, tmp_path)

"""pipeline-loops: how many tiles a loop is to hold, at the bounds of what decides it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.passes.ir_cases import body_lines, kernel_of, program
from tiledsl.dialects import scf, tile
from tiledsl.ir.verifier import verify
from tiledsl.passes.pipeline_loops import PipelineLoops
from tiledsl.runtime.target import Target

PARAMETERS = "A: 4096*4096*float16, B: 4096*4096*float16, E: 4096*4096*int8, F: 4096*4096*int8, n: int32"


def load(name: str, rows: int, columns: int, buffer: str = "A", place: str = "%k") -> str:
    dtype = "int8" if buffer in "EF" else "float16"
    return f"{name} = tile.load_block %{buffer}[{place}, %c0] {{axes = (0, 1)}} : tensor<{rows}x{columns}x{dtype}>\n"


def loop(
    rows: int,
    columns: int,
    summed: int,
    stages: int = 2,
    end: str = "%c64",
    more: str = "",
    before: str = "",
    **tiles: str,
) -> str:
    """One that adds products; `a` and `b` say where their tiles come from."""
    kind = f"tensor<{rows}x{columns}x{'int32' if tiles.get('dtype') == 'int8' else 'float32'}>"
    zero = 0 if "int32" in kind else 0.0
    depth = f" {{num_stages = {stages}}}" if stages else ""
    a, b = tiles.get("a", load("%a", rows, summed)), tiles.get("b", load("%b", summed, columns, "B"))
    return f"""
    %zero = arith.constant {{value = {zero}}} : {kind}
    {before}
    %sum = scf.for %c0, {end}, %c1[%zero]{depth} : {kind} (%k: int32, %old: {kind}) {{
      {a}{b}
      %new = tensor.dot %a, %b, %old : {kind}
      {more}
      scf.yield [%new]
    }}"""


def depth(body: str, *, grid: Any = (1000,), threads: int = 128, options: tuple[tuple[str, int], ...] = ()) -> int:
    made = program(body, parameters=PARAMETERS, grid=grid, target=Target("cuda", 90))
    kernel_of(made).set_attribute("threads", threads)
    kernel_of(made).set_attribute("options", options)
    PipelineLoops().run(made)
    return max(op.num_stages for op in made.root.walk() if isinstance(op, scf.ForOp))


BYTES = load("%a", 33, 129, "E", "%bx")  # an odd number of them


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # 2 blocks have 116736 bytes each, of which CUDA takes 1024: two tiles of 57856 are as many as fit
        (loop(32, 194, 128), 3),
        (loop(32, 195, 128), 2),
        # a tile that stays, and two of 55728: one byte too many, and 774 too few
        (loop(33, 432, 129, dtype="int8", before=BYTES, a="", b=load("%b", 129, 432, "F")), 2),
        (loop(33, 429, 129, dtype="int8", before=BYTES, a="", b=load("%b", 129, 429, "F")), 3),
        # with 64 rows a third tile is there: three of 38400 bytes, but not of 38656
        (loop(64, 236, 64), 3),
        (loop(63, 236, 64), 3),
        (loop(64, 238, 64), 2),
        (loop(63, 238, 64), 3),
    ],
)
def test_two_blocks_fit(body: str, expected: int) -> None:
    assert depth(body, threads=256) == expected


WIDE = load("%e", 64, 16, "B") + load("%f", 64, 16, "B")
SMALL_PRODUCTS = """
%zeros = arith.constant {value = 0.0} : tensor<64x16xfloat32>
%first = tensor.dot %a, %e, %zeros : tensor<64x16xfloat32>
%x = tensor.reduce %first {axis = 1, kind = "max"} : tensor<64xfloat32>
%second = tensor.dot %a, %f, %zeros : tensor<64x16xfloat32>
%y = tensor.reduce %second {axis = 1, kind = "max"} : tensor<64xfloat32>
"""
READ_TWICE = "%twice = arith.add %c, %c : tensor<64x16xfloat16>"


def sums(columns: int, b: str = "", more: str = "") -> str:
    """Of 64 times so many elements: a third of that many registers of each of 192 threads. Two tiles of each operand
    leave shared memory to three blocks, three tiles to two."""
    return loop(64, columns, 64, b=load("%b", 64, columns, "B") + b, more=more)


@pytest.mark.parametrize(
    ("body", "threads", "expected"),
    [
        # 113 registers of a thread, 48 of them for no tiles, are few enough for three blocks; 114 are not
        (sums(195), 192, 2),
        (sums(198), 192, 3),
        # 55.33 of the sums, and 5.33 of each of two products, one needed at once: what the loop makes counts
        (sums(166, WIDE, SMALL_PRODUCTS), 192, 3),
        (sums(165, WIDE, SMALL_PRODUCTS), 192, 2),
        # 63 and 2.67 of a tile that is read behind the product: what is there at once counts
        (sums(190, load("%c", 64, 16), READ_TWICE), 192, 3),
        (sums(189, load("%c", 64, 16), READ_TWICE), 192, 2),
        # 43.67 and 21.83 of a tile that is multiplied and computed with, too; 44 and 22 are 66
        (sums(132, more="%twice = arith.add %b, %b : tensor<64x132xfloat16>"), 192, 3),
        (sums(131, more="%twice = arith.add %b, %b : tensor<64x131xfloat16>"), 192, 2),
        # which is loaded twice but once: two of three tiles again; of 143 columns they fit into one block alone
        (sums(142, more="%twice = arith.add %b, %b : tensor<64x142xfloat16>"), 192, 3),
        (sums(143, more="%twice = arith.add %b, %b : tensor<64x143xfloat16>"), 192, 2),
        # no more than three blocks, even if there is room for four with two tiles
        (sums(128), 96, 3),
    ],
)
def test_as_many_blocks_as_have_registers(body: str, threads: int, expected: int) -> None:
    assert depth(body, threads=threads) == expected


@pytest.mark.parametrize(
    ("grid", "expected"), [((132,), 3), ((133,), 2), ((66, 2), 3), ((67, 2), 2), (("%n",), 2), (("%n", 1), 2)]
)
def test_no_more_blocks_than_the_grid_has(grid: Any, expected: int) -> None:
    """Three tiles fit once, two twice."""
    assert depth(loop(32, 220, 128), grid=grid, threads=256) == expected


COMPUTED = load("%b16", 64, 64, "B") + "%b = arith.add %b16, %b16 : tensor<64x64xfloat16>\n"


def rows(count: int, before: str = "", a: str = "", b: str = "") -> str:
    return loop(32, 64, count, before=before, a=a or load("%a", 32, count), b=b or load("%b", count, 64, "B"))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # two of (32 + 64) x 301 x 2 = 57792 bytes fit twice; of 302 rows not
        (rows(301), 3),
        (rows(302), 2),
        # one operand stays: two of 38656 bytes, and 38656 / 2 once; of 361 rows not
        (rows(361, load("%a", 32, 361, place="%bx"), "%a1 = arith.constant {value = 0} : int32\n"), 3),
        (rows(362, load("%a", 32, 362, place="%bx"), "%a1 = arith.constant {value = 0} : int32\n"), 2),
    ],
)
def test_what_stays_and_what_is_made_take_room_once(body: str, expected: int) -> None:
    assert depth(body) == expected


def inside(around: str, body: str) -> str:
    end = "\nscf.yield\n}"
    return f"{around} {{\n{body}{end}" + (" {" + end if "scf.if" in around else "")


AGAIN = "scf.for %c0, %c9, %c1 (%turn: int32)"


@pytest.mark.parametrize(
    ("rows", "stages", "trips", "again", "expected"),
    [
        (64, 1, 4, False, 2),  # few iterations: one tile more
        (64, 1, 5, False, 3),
        (64, 1, 1, False, 1),
        (64, 1, 2, False, 2),
        (64, 1, 2, True, 1),  # as many iterations as it would hold, and these again and again
        (64, 1, 3, True, 2),
        (64, 1, 4, True, 2),
        (64, 1, 5, True, 3),
        (64, 0, 5, True, 3),
        (64, 2, 3, True, 2),
        (64, 2, 4, True, 3),
        (32, 1, 64, False, 2),  # not asynchronous
        (63, 1, 64, False, 2),
        (32, 1, 2, False, 2),
        (32, 1, 1, False, 1),
        (32, 2, 2, False, 3),
        (32, 2, 1, False, 2),
        (32, 2, 3, True, 2),
        (32, 2, 4, True, 3),
    ],
)
def test_short_loops(rows: int, stages: int, trips: int, again: bool, expected: int) -> None:
    body = loop(rows, 64, 64, stages, f"%c{trips}")
    assert depth(inside(AGAIN, body) if again else body) == (expected if expected > 1 else stages)


def test_a_short_inner_loop_loads_one_tile_more_also_where_the_grid_leaves_room() -> None:
    body = loop(64, 64, 64, 1, "%c4")
    assert (depth(body, grid=(132,)), depth(inside(AGAIN, body), grid=(132,))) == (3, 2)


def test_one_asynchronous_product_is_enough() -> None:
    """For three tiles at once."""
    small = """%c = tensor.reshape %b : tensor<32x128xfloat16>
    %zeros = arith.constant {value = 0.0} : tensor<32x32xfloat32>
    %t = tensor.transpose %c {permutation = (1, 0)} : tensor<128x32xfloat16>
    %d = tensor.dot %c, %t, %zeros : tensor<32x32xfloat32>"""
    assert depth(loop(64, 64, 64, 1, more=small)) == 3


@pytest.mark.parametrize("around", [AGAIN, "scf.while [%n] : int32 (%turn: int32)", "scf.if %less"])
def test_loops_load_ahead_in_their_own_body(around: str) -> None:
    """Not those with a loop inside, nor those that load under a condition alone."""
    less = '%less = arith.cmp %bx, %n {predicate = "lt"} : bool\n'
    if "while" in around:
        more = f"{less}%last = {around} {{\nscf.condition %less [%turn]\n}} (%same: int32) {{\nscf.yield [%same]\n}}"
    else:
        more = less + inside(around, load("%c", 64, 16))
    assert depth(loop(64, 64, 64, more=more)) == (3 if "if" in around else 2)
    zero = "%z = arith.constant {value = 0.0} : tensor<64x64xfloat32>\n"
    product = load("%a", 64, 64) + "%new = tensor.dot %a, %a, %z : tensor<64x64xfloat32>"
    assert depth(less + zero + inside("scf.for %c0, %c9, %c1 (%k: int32)", inside("scf.if %less", product))) == 0


@pytest.mark.parametrize(("around", "expected"), [(AGAIN, 2), ("scf.if %c", 3)])
def test_loops_of_an_unknown_number_of_iterations(around: str, expected: int) -> None:
    body = '%c = arith.cmp %bx, %n {predicate = "lt"} : bool\n' + inside(around, loop(64, 64, 64, 1, "%n"))
    assert depth(body) == expected


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [("%c0", 4, 1, 2), ("%c0", 5, 1, 3), ("%c1", 5, 1, 2), ("%c1", 6, 1, 3), ("%c0", 4, 2, 3)],
)
def test_loops_of_few_iterations_at_most(start: str, end: int, step: int, expected: int) -> None:
    """Of steps of 1: how many others take is not looked for."""
    few = f"%end = arith.min %n, %c{end} : int32\n"
    body = loop(64, 64, 64, 1, "%end").replace("%c0, %end, %c1", f"{start}, %end, %c{step}")
    assert depth(few + body) == expected


@pytest.mark.parametrize(
    ("body", "options", "expected"),
    [
        (loop(64, 64, 64, 0), (), 3),
        (loop(64, 64, 64, 0), (("num_stages", 2),), 0),
        (loop(64, 64, 64, 1), (("num_stages", 2),), 3),
        (loop(64, 64, 64, 0).replace("[%zero]", "[%zero] {unroll = 4}"), (), 0),
        (loop(64, 64, 64, 1).replace("num_stages = 1", "num_stages = 1, unroll = 4"), (), 3),
        (loop(64, 64, 64, 3), (), 3),
    ],
)
def test_what_the_program_asks_for_stays(body: str, options: tuple[tuple[str, int], ...], expected: int) -> None:
    assert depth(body, options=options) == expected


@pytest.mark.parametrize(
    ("stages", "product", "expected"), [(0, False, 0), (0, True, 1), (1, False, 1), (2, False, 1), (2, True, 1)]
)
def test_a_loop_that_writes_what_it_loads_holds_one_tile_if_it_is_pipelined_at_all(
    stages: int, product: bool, expected: int
) -> None:
    zero = "%zero = arith.constant {value = 0.0} : tensor<64x64xfloat32>\n"
    dot = "%d = tensor.dot %a, %a, %zero : tensor<64x64xfloat32>\n" if product else ""
    store = """%i = tensor.iota {axis = 0} : tensor<64xint32>
    %line = tensor.reduce %a {axis = 0, kind = "max"} : tensor<64xfloat16>
    tile.store %line, %A[%k, %i]"""
    head = "scf.for %c0, %c9, %c1 " + (f"{{num_stages = {stages}}} " if stages else "") + "(%k: int32)"
    made = program(zero + inside(head, load("%a", 64, 64) + dot + store), parameters=PARAMETERS)
    PipelineLoops().run(made)
    (found,) = [op for op in made.root.walk() if isinstance(op, scf.ForOp)]
    assert found.num_stages == expected
    assert len(next(iter(tile.kernels(made.root))).remarks) == (stages > 1)  # of loops that were to be pipelined


def loads_of_b(
    stages: int, threads: int = 128, options: tuple[tuple[str, int], ...] = (), cache: str = ""
) -> list[str]:
    """The lines that load and read the second tile, which is multiplied and computed with."""
    text = f"""
    %zero = arith.constant {{value = 0.0}} : tensor<64x64xfloat32>
    %i = tensor.iota {{axis = 0}} : tensor<64x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x64xint32>
    %sum = scf.for %c0, %c64, %c1[%zero] {f"{{num_stages = {stages}}}" if stages else ""} : tensor<64x64xfloat32> (%k: int32, %old: tensor<64x64xfloat32>) {{
      %a = tile.load %A[%i, %j] : tensor<64x64xfloat16>
      %b = tile.load %B[%i, %j] {cache} : tensor<64x64xfloat16>
      %t = tensor.transpose %b {{permutation = (1, 0)}} : tensor<64x64xfloat16>
      %new = tensor.dot %a, %t, %old : tensor<64x64xfloat32>
      %line = tensor.reduce %t {{axis = 1, kind = "max"}} : tensor<64xfloat16>
      scf.yield [%new]
    }}"""  # noqa: E501
    made = program(text, parameters=PARAMETERS, target=Target("cuda", 90))
    kernel_of(made).set_attribute("threads", threads)
    kernel_of(made).set_attribute("options", options)
    PipelineLoops(deepen=False).run(made)
    verify(made.root)
    wanted = ("tile.load %B", "tensor.transpose", "tensor.dot", "tensor.reduce")
    return [line.partition(" :")[0] for line in body_lines(made) if any(each in line for each in wanted)]


def twice(load: str, other: str) -> list[str]:
    return [
        f"%b = tile.load %B[%i, %j]{load}",
        f"%b_1 = tile.load %B[%i, %j]{other}",
        "%t = tensor.transpose %b_1 {permutation = (1, 0)}",
        "%t_1 = tensor.transpose %b {permutation = (1, 0)}",
        "%new = tensor.dot %a, %t, %old",
        '%line = tensor.reduce %t_1 {kind = "max", axis = 1}',
    ]


ONCE = [line.replace("_1", "") for number, line in enumerate(twice("", "")) if number not in (1, 3)]
CA = ' {cache = ".ca"}'


@pytest.mark.parametrize(
    ("stages", "threads", "options"),
    [(2, 128, {}), (0, 128, {"num_stages": 2}), (2, 32, {"num_warps": 4}), (2, 256, {})],
)
def test_a_tile_that_is_multiplied_and_computed_with_is_loaded_twice(
    stages: int, threads: int, options: dict[str, int]
) -> None:
    """Transposed twice, too."""
    assert loads_of_b(stages, threads, tuple(options.items())) == twice(CA, "")


@pytest.mark.parametrize(("cache", "other"), [(CA, ""), (' {cache = ".cg"}', "")])
def test_both_are_cached_alike_but_differ(cache: str, other: str) -> None:
    assert loads_of_b(2, cache=cache) == twice(other, cache)


@pytest.mark.parametrize(
    ("stages", "threads", "options"),
    [
        (1, 128, {}),
        (0, 128, {}),
        (0, 128, {"num_stages": 1}),
        (1, 128, {"num_stages": 2}),
        (2, 128, {"num_warps": 2}),
        (2, 96, {}),
    ],
)
def test_without_loads_ahead_or_asynchronous_products_a_tile_is_loaded_once(
    stages: int, threads: int, options: dict[str, int]
) -> None:
    assert loads_of_b(stages, threads, tuple(options.items())) == ONCE


def test_a_transposed_tile_that_no_product_reads_is_transposed_once() -> None:
    other = """%t = tensor.transpose %b {permutation = (1, 0)} : tensor<64x64xfloat16>
    %line = tensor.reduce %t {axis = 1, kind = "max"} : tensor<64xfloat16>"""
    body = loop(
        64, 64, 64, more=other, b=load("%b", 64, 64, "B").replace("load_block", "load").replace(" {axes = (0, 1)}", "")
    )
    i, j = (
        f"%{name} = tensor.iota {{axis = {axis}}} : tensor<{shape}xint32>"
        for axis, name, shape in ((0, "i", "64x1"), (1, "j", "1x64"))
    )
    made = program(
        f"{i}\n{j}\n" + body.replace("%B[%k, %c0]", "%B[%i, %j]"), parameters=PARAMETERS, target=Target("cuda", 90)
    )
    kernel_of(made).set_attribute("threads", 128)
    PipelineLoops().run(made)
    assert sum("tensor.transpose" in line for line in body_lines(made)) == 1

"""promote-buffers."""

from __future__ import annotations

import hashlib
import re
import time

import numpy as np
import pytest

from tests.passes.ir_cases import TO_VALUES, body_lines, filecheck, kernel, to_values
from tests.support.programs import NAMED, check_pass, inputs_for
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import Program, parse_program
from tiledsl.ir.printer import print_op
from tiledsl.passes.promote_buffers import PromoteBuffers

COPY = "{shape = (4,), source_axes = (0,), target_axes = (0,)}"
START = """%t = tile.alloc : buffer<4*float32, fragment> %u = tile.alloc : buffer<4*float32, shared>
  %n = tile.alloc : buffer<int32, local> tile.store %c2, %n
  tile.copy %A, %t COPY tile.copy %A, %u COPY """
END = " tile.copy %t, %B COPY "


def promoted(body: str) -> list[str]:
    """The lines that the body leaves, between the loads of %A and the store to %B."""
    func = kernel("A: 4*float32, B: 4*float32", (START + body + END).replace("COPY", COPY))
    text = to_values(func)
    assert "tile.alloc" not in text and "tile.read" not in text and "tile.write" not in text
    lines = body_lines(parse_program(text))
    first = lines.index("%u = tile.load %A[%0] : tensor<4xfloat32>") + 1
    return lines[first : next(number for number, line in enumerate(lines) if line.endswith(", %B[%0]"))]


def test_an_index_that_a_loop_changes_has_bounds_while_the_loop_is_rewritten() -> None:
    lines = promoted(
        """scf.for %c0, %c3, %c1 (%k: int32) { %v = tile.load %n : int32
             tile.parallel {extents = (4,)} (%i: int32) {
               %p = arith.add %i, %v : int32 %q = arith.floormod %p, %c4 : int32
               %x = tile.load %t[%q] : float32 tile.store %x, %u[%i] }
             tile.copy %u, %t COPY %w = arith.add %v, %c1 : int32 tile.store %w, %n scf.yield }"""
    )
    assert lines == [
        "%t_1, %n = scf.for %c0, %c3, %c1[%t, %c2] : tensor<4xfloat32>, int32 "
        "(%k: int32, %t_2: tensor<4xfloat32>, %n_1: int32) {",
        "%i = tensor.iota {axis = 0} : tensor<4xint32>",
        "%p = arith.add %i, %n_1 : tensor<4xint32>",
        "%q = arith.floormod %p, %c4 : tensor<4xint32>",
        "%x = tensor.gather %t_2, %q {axis = 0} : tensor<4xfloat32>",
        "%w = arith.add %n_1, %c1 : int32",
        "scf.yield [%x, %w]",
        "}",
    ]


def test_an_accumulator_is_carried_and_a_staged_tile_is_not() -> None:
    lines = promoted(
        """scf.for %c0, %c3, %c1 (%k: int32) { tile.copy %A, %u COPY
             tile.parallel {extents = (4,)} (%i: int32) {
               %x = tile.load %t[%i] : float32 %y = tile.load %u[%i] : float32
               %z = arith.add %x, %y : float32 tile.store %z, %t[%i] } scf.yield }"""
    )
    assert lines == [
        "%t_1 = scf.for %c0, %c3, %c1[%t] : tensor<4xfloat32> (%k: int32, %t_2: tensor<4xfloat32>) {",
        "%1 = tensor.iota {axis = 0} : tensor<4xint32>",
        "%u_1 = tile.load %A[%1] : tensor<4xfloat32>",
        "%i = tensor.iota {axis = 0} : tensor<4xint32>",
        "%z = arith.add %t_2, %u_1 : tensor<4xfloat32>",
        "scf.yield [%z]",
        "}",
    ]


def test_what_is_read_after_the_loop_is_carried_out() -> None:
    found = promoted("scf.for %bx, %c3, %c1 (%k: int32) { tile.copy %A, %t COPY tile.fill %c1.0, %u scf.yield }")
    assert found == [
        "%t_1 = scf.for %bx, %c3, %c1[%t] : tensor<4xfloat32> (%k: int32, %t_2: tensor<4xfloat32>) {",
        "%1 = tensor.iota {axis = 0} : tensor<4xint32>",
        "%t_3 = tile.load %A[%1] : tensor<4xfloat32>",
        "scf.yield [%t_3]",
        "}",
    ]


ADD_T_TO_U = """tile.parallel {extents = (4,)} (%i: int32) {
    %x = tile.load %t[%i] : float32 %y = tile.load %u[%i] : float32
    %z = arith.add %x, %y : float32 tile.store %z, %u[%i] }"""
# Of two blocks, the first does it once; the second, whose results stay, does nothing.
MAYBE_ONCE = "scf.for %bx, %c1, %c1 (%j: int32) { tile.fill %c2.0, %t scf.yield }"
MAYBE_WHILE = """tile.store %bx, %n scf.while { %m = tile.load %n : int32
    %more = arith.cmp %m, %c1 {predicate = "lt"} : bool scf.condition %more } {
    tile.fill %c2.0, %t %m = tile.load %n : int32 %o = arith.add %m, %c1 : int32 tile.store %o, %n scf.yield }"""
MAYBE_THEN = """%is_first = arith.cmp %bx, %c1 {predicate = "lt"} : bool
    scf.if %is_first { tile.fill %c2.0, %t scf.yield } { scf.yield }"""
MAYBE_ELSE = """%is_second = arith.cmp %bx, %c1 {predicate = "eq"} : bool
    scf.if %is_second { scf.yield } { tile.fill %c2.0, %t scf.yield }"""


@pytest.mark.parametrize("maybe", [MAYBE_ONCE, MAYBE_WHILE, MAYBE_THEN, MAYBE_ELSE])
@pytest.mark.parametrize(
    "body",
    [
        f"scf.for %c0, %c3, %c1 (%k: int32) {{ MAYBE {ADD_T_TO_U} scf.yield }} tile.copy %u, %t COPY",
        """%first = arith.cmp %bx, %c1 {predicate = "le"} : bool
           scf.if %first { tile.fill %c3.0, %t scf.yield } { scf.yield } MAYBE""",
    ],
)
def test_what_writes_all_of_a_buffer_may_run_never(body: str, maybe: str) -> None:
    promoted(body.replace("MAYBE", maybe))


def test_a_partial_write_keeps_the_rest_and_values_carry_the_names_of_their_buffers() -> None:
    assert promoted("scf.for %c0, %c3, %c1 (%k: int32) { tile.store %c1.0, %t[%k] scf.yield }") == [
        "%t_1 = scf.for %c0, %c3, %c1[%t] : tensor<4xfloat32> (%k: int32, %t_2: tensor<4xfloat32>) {",
        "%1 = tensor.iota {axis = 0} : tensor<4xint32>",
        '%2 = arith.cmp %1, %k {predicate = "eq"} : tensor<4xbool>',
        "%t_3 = arith.select %2, %c1p0, %t_2 : tensor<4xfloat32>",
        "scf.yield [%t_3]",
        "}",
    ]


def test_conditions_join_what_their_branches_leave() -> None:
    found = promoted(
        """%c = arith.cmp %bx, %c1 {predicate = "lt"} : bool
           scf.if %c { tile.fill %c1.0, %t tile.fill %c1.0, %u scf.yield } { scf.yield }"""
    )
    assert found == [
        '%c = arith.cmp %bx, %c1 {predicate = "lt"} : bool',
        "%t_1 = scf.if %c : tensor<4xfloat32> {",
        "scf.yield [%c1p0]",
        "} {",
        "scf.yield [%t]",
        "}",
    ]


def test_while_with_a_variable_and_a_value_from_its_condition() -> None:
    lines = promoted(
        """scf.while { %x = tile.load %n : int32 %c = arith.cmp %x, %c7 {predicate = "lt"} : bool
             %f = arith.cast %x : float32 tile.fill %f, %u scf.condition %c } {
             tile.parallel {extents = (4,)} (%i: int32) { %x = tile.load %u[%i] : float32 tile.store %x, %t[%i] }
             %x = tile.load %n : int32 %y = arith.add %x, %c3 : int32 tile.store %y, %n scf.yield }"""
    )
    assert lines[0].startswith("%u_1, %t_1, %n = scf.while [%u, %t, %c2]")  # in the order of the writes


def test_what_the_body_of_a_while_reads_comes_from_the_iteration_around_it() -> None:
    promoted(
        f"""scf.for %c0, %c2, %c1 (%k: int32) {{ tile.store %c5, %n
              scf.while {{ %m = tile.load %n : int32 %more = arith.cmp %m, %c7 {{predicate = "lt"}} : bool
                scf.condition %more }} {{ {ADD_T_TO_U}
                %m = tile.load %n : int32 %o = arith.add %m, %c1 : int32 tile.store %o, %n scf.yield }}
              tile.fill %c3.0, %t scf.yield }} tile.copy %u, %t COPY"""
    )


def test_loops_in_conditions_in_loops() -> None:
    promoted(
        """scf.for %c0, %c4, %c1 (%k: int32) {
             %c = arith.cmp %k, %bx {predicate = "gt"} : bool
             scf.if %c { scf.for %c0, %c2, %c1 (%l: int32) { tile.store %c4.0, %t[%l] %x = tile.load %t[%c3] : float32
                 tile.store %x, %u[%l] scf.yield } scf.yield }
               { tile.copy %u, %t COPY scf.yield }
             scf.yield }"""
    )


def test_columns_that_no_access_reaches_are_cut_off() -> None:
    body = """%w = tile.alloc : buffer<4*40*float32, shared>
      tile.parallel {extents = (4, LAST)} (%i: int32, %j: int32) {
        %x = tile.load %A[%i, %j] : float32 tile.store %x, %w[%i, %j] }
      tile.parallel {extents = (4, 32)} (%i: int32, %j: int32) {
        %x = tile.load %w[%i, %j] : float32 tile.store %x, %B[%i, %j] }"""
    filled = "%w = tile.alloc : buffer<4*40*float32, shared> tile.fill %c1.0, %w"
    picked = body + "%k = tile.load %I[%bx] : int32 %q = tile.load %w[%c1, %k] : float32 tile.store %q, %B[%bx, %c39]"
    for text, last, size in (
        (body, 32, 32),
        (body, 33, 40),
        (body.replace("%w = tile.alloc : buffer<4*40*float32, shared>", filled), 32, 40),
        (picked, 32, 40),
    ):
        func = kernel("A: 4*40*float32, B: 4*40*float32, I: 2*int32", text.replace("LAST", str(last)))
        inputs = [*inputs_for(func)[:2], np.array([2, 3], np.int32)]
        widths = re.findall(r": tensor<4x(\d+)xfloat32>", to_values(func, inputs=inputs))
        assert max(map(int, widths)) == size


def test_a_tile_before_which_all_accesses_lie_keeps_its_elements() -> None:
    func = kernel(
        "A: 4*float32",
        """%w = tile.alloc : buffer<8*float32, shared> %i = tensor.iota {axis = 0} : tensor<4xint32>
          %j = arith.sub %i, %c8 : tensor<4xint32> %m = arith.cmp %j, %c0 {predicate = "ge"} : tensor<4xbool>
          tile.store %c1.0, %w[%j] mask=%m
          %x = tile.load %w[%j] mask=%m : tensor<4xfloat32> tile.store %x, %A[%i]""",
    )
    text = print_op(check_pass(PromoteBuffers(), func, inputs_for(func)))
    assert "%w_1 = arith.select" in text and "tensor<0x" not in text


READ = "%x = tile.load %NAME[%c0] : float32 tile.store %x, %A[%c0]"
FIRST = '%first = arith.cmp %bx, %c1 {predicate = "lt"} : bool '


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (READ, True),
        ("tile.store %c1.0, %NAME[%c1] " + READ, False),
        (READ.replace("[%c0] :", "[%c0] mask=%first :"), False),
        (
            "%x = tile.load %NAME[%c0] : float32 %y = arith.select %first, %c1.0, %x : float32 tile.store %y, %A[%c0]",
            False,
        ),
        (READ + " %y = arith.select %first, %c1.0, %x : float32 tile.store %y, %A[%c1]", True),
        (f"scf.for %c0, %c3, %c1 (%k: int32) {{ {READ} tile.store %c1.0, %NAME[%c1] scf.yield }}", True),
        (f"scf.for %c0, %c3, %c1 (%k: int32) {{ tile.store %c1.0, %NAME[%c1] {READ} scf.yield }}", False),
        (f"scf.for %c0, %c3, %c1 (%k: int32) {{ tile.store %c1.0, %NAME[%c1] scf.yield }} {READ}", False),
        (  # perhaps in a later iteration only
            f"scf.for %c0, %c3, %c1 (%k: int32) {{ scf.if %first {{ {READ} scf.yield }} {{ scf.yield }} "
            "tile.store %c1.0, %NAME[%c1] scf.yield }",
            False,
        ),
        (f"scf.if %first {{ {READ} scf.yield }} {{ tile.store %c1.0, %NAME[%c1] scf.yield }}", True),
    ],
)
def test_unwritten_tiles_that_are_read_are_told(body: str, told: bool, caplog: pytest.LogCaptureFixture) -> None:
    name = "t" + hashlib.sha256(body.encode()).hexdigest()[:8]  # it is told once
    alloc = "%NAME = tile.alloc : buffer<4*float32, shared> "
    PromoteBuffers().run(Program(kernel("A: 4*float32", (alloc + FIRST + body).replace("NAME", name))))
    messages = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert messages == [f"{name} is read before anything is written to it; it reads as 0"] * told


@pytest.mark.parametrize(("name", "told"), [("t", "t"), ("0", "an on-chip buffer")])
def test_atomics_of_tiles_are_refused_by_name(name: str, told: str) -> None:
    body = f"""%{name} = tile.alloc : buffer<4*float32, shared>
      %old = tile.atomic %c1.0, %{name}[%c0] {{kind = "add"}} : float32"""
    with pytest.raises(TileError, match=f"an atomic operation on {told}, which is not a global buffer"):
        PromoteBuffers().run(Program(kernel("A: 4*float32", body)))


def test_what_is_never_written_is_zero() -> None:
    func = kernel("B: 4*float32", f"%t = tile.alloc : buffer<4*float32, fragment> tile.copy %t, %B {COPY}")
    check_pass(TO_VALUES, func, inputs_for(func), uninitialised="zero")


def test_a_large_scatter_takes_the_last_point_of_each_element() -> None:
    func = kernel(
        "I: 600*int32, O: 700*float32",
        """%t = tile.alloc : buffer<700*float32, fragment>
           %z = arith.constant {value = -1.0} : tensor<700xfloat32>
           tile.write %z, %t
           tile.parallel {extents = (600,)} (%i: int32) {
             %k = tile.load %I[%i] : int32
             %f = arith.cast %i : float32
             tile.store %f, %t[%k]
           }
           tile.parallel {extents = (700,)} (%i: int32) { %x = tile.load %t[%i] : float32 tile.store %x, %O[%i] }""",
    )
    places = np.random.default_rng(0).integers(0, 700, 600, np.int32)
    text = print_op(check_pass(TO_VALUES, func, [places, np.zeros(700, np.float32)]))
    filecheck(
        text,
        """
        CHECK: %[[LAST:.*]], %{{.*}} = tensor.scatter %{{.*}}, %{{.*}}, %{{.*}} {kind = "max"} : tensor<700xint32>, tensor<600xint32>
        CHECK: %[[PLACE:.*]] = arith.max %[[LAST]], %{{.*}} : tensor<700xint32>
        CHECK: tensor.gather %{{.*}}, %[[PLACE]] {axis = 0} : tensor<700xfloat32>
        """,  # noqa: E501
    )


def test_previous_values_on_chip_at_indices_of_points_are_read() -> None:
    func = kernel(
        "I: 4*int32",
        """%t = tile.alloc : buffer<4*int32, shared>
           tile.parallel {extents = (4,)} (%i: int32) {
             tile.store %i, %t[%i]
             %o = tile.atomic %c5, %t[%i] {kind = "add"} : int32
             %p = tile.atomic %c1, %t[%i] {kind = "add"} : int32
             %q = arith.mul %o, %p : int32
             tile.store %q, %I[%i]
           }""",
    )
    made = check_pass(TO_VALUES, func, inputs_for(func))
    assert not [op for op in made.walk() if op.name in ("tensor.scatter", "tile.atomic")]


@pytest.mark.parametrize("name", NAMED)
def test_named_programs(name: str) -> None:
    func = NAMED[name]()
    sizes = {"M": 17, "N": 5, "K": 9} if func.symbols else None
    check_pass(TO_VALUES, func, inputs_for(func, 0, sizes), tolerance=1e-3, uninitialised="zero")


def test_time_grows_linearly() -> None:
    def seconds(count: int) -> float:
        body = "".join(
            "tile.store %c1.0, %t[%c1] scf.for %c0, %c3, %c1 (%k: int32) { tile.copy %t, %u COPY scf.yield }"
            for _ in range(count)
        )
        best = 1e9
        for _ in range(3):
            func = kernel("A: 4*float32, B: 4*float32", (START + body + END).replace("COPY", COPY))
            start = time.process_time()
            for each in TO_VALUES:
                each.run(Program(func))
            best = min(best, time.process_time() - start)
        return best

    assert seconds(200) < 24 * seconds(25)  # 8 times as much


@pytest.mark.parametrize("change", ["tile.fill %c2.0, %t", "tile.copy %u, %t COPY"])
def test_what_a_branch_writes_is_live_if_a_part_is_written_behind_it(change: str) -> None:
    """A whole tile that is written behind it is not."""
    branch = '%c = arith.cmp %bx, %c1 {predicate = "lt"} : bool scf.if %c { CHANGE scf.yield } { scf.yield }'
    text = "tile.fill %c4.0, %u " + branch.replace("CHANGE", change)
    part = promoted(text + " tile.store %c3.0, %t[%c1]")
    whole = promoted(text + " tile.fill %c3.0, %t")
    assert any(" = scf.if" in line for line in part) and not any(" = scf.if" in line for line in whole)

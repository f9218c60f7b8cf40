"""Where threads of a block wait for each other between accesses to one tensor."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tiledsl.dialects import thread, tile
from tiledsl.ir.pass_manager import parse_program
from tiledsl.passes.order_accesses import OrderAccesses

HEAD = """
    %0 = arith.constant {value = 0} : int32
    %1 = arith.constant {value = 1} : int32
    %3 = arith.constant {value = 3} : int32
    %4 = arith.constant {value = 4} : int32
    %7 = arith.constant {value = 7} : int32
    %i = tensor.iota {axis = 0} : tensor<8xint32>
    %r = arith.sub %7, %i : tensor<8xint32>
    %eight = arith.constant {value = 8} : int32
    %f = arith.constant {value = 1.0} : float32
    %one = arith.constant {value = 1.0} : tensor<8xfloat32>
"""
READ = "%x = tile.load %A[%i] : tensor<8xfloat32>\n"
READ_AGAIN = "%y = tile.load %A[%i] : tensor<8xfloat32>\n"
TURNED = "%x = tile.load %A[%r] : tensor<8xfloat32>\n"
WRITE = "tile.store %one, %A[%i]\n"
WRITE_TURNED = "tile.store %one, %A[%r]\n"
WRITE_OTHER = "tile.store %one, %B[%i]\n"
PART = """%p{0} = tensor.iota {{axis = 0}} : tensor<4xint32>
%q{0} = arith.add %p{0}, %{0} : tensor<4xint32>
%h{0} = arith.constant {{value = 1.0}} : tensor<4xfloat32>
tile.store %h{0}, %A[%q{0}]
"""
LOW, MIDDLE, HIGH = PART.format(0), PART.format(3), PART.format(4)
ADD_HIGH = HIGH.replace(
    "tile.store %h4, %A[%q4]", '%old4 = tile.atomic %h4, %A[%q4] {kind = "add"} : tensor<4xfloat32>'
)
ADD = '%old = tile.atomic %one, %A[%r] {kind = "add"} : tensor<8xfloat32>\n'
ADD_ONE = '%count = tile.atomic %f, %A[%1] {kind = "add"} : float32\n'
RELEASE = ADD_ONE.replace('"add"', '"add", semantics = "release"')
WRITE_ONE = "tile.store %f, %B[%1]\n"
SAME_ADD = ADD.replace("%r", "%i")
VIEW = "%V = tile.view %A : buffer<2*4*float32, global>\n"
ROW = "%z = tile.load %V[%1, %p] : tensor<4xfloat32>\n"
WALK = "%p = tensor.iota {axis = 0} : tensor<4xint32>\n"
PLACES = """%k8 = arith.add %k, %eight : int32
%down = tensor.iota {axis = 0} : tensor<2x1xint32>
%columns = tensor.iota {axis = 1} : tensor<1x4xint32>
%across = arith.add %columns, %k : tensor<1x4xint32>
%all = arith.constant {value = 1.0} : tensor<2x4xfloat32>
"""
FOUR = "%h = arith.constant {value = 1.0} : tensor<4xfloat32>\n"


def elements(*places: str) -> str:
    return "".join(f"tile.store %f, %A[%{place}]\n" for place in places)


def blocks(*starts: str) -> str:
    return FOUR + "".join(f"tile.store_block %h, %A[%{start}] {{axes = (0,)}}\n" for start in starts)


def rows(*starts: str) -> str:
    """Rows of a matrix of two dimensions, which a block of one dimension walks."""
    return FOUR + "".join(f"tile.store_block %h, %M[{start}] {{axes = (1,)}}\n" for start in starts)


def ordered(body: str) -> list[str]:
    """The accesses and barriers of a kernel, in the order of its text, after the pass."""
    text = f"""tile.func {{sym_name = "f", parameters = ("A", "B", "M")}}
      (%A: buffer<8*float32, global>, %B: buffer<8*float32, global>, %M: buffer<2*8*float32, global>) {{
      %grid = arith.constant {{value = 1}} : int32
      tile.kernel [%grid] (%bx: int32) {{ {HEAD} {body} scf.yield }}
    }}"""
    made = parse_program(text)
    OrderAccesses().run(made)
    kinds = (tile.LoadOp, tile.StoreOp, tile.LoadBlockOp, tile.StoreBlockOp, tile.AtomicOp, thread.BarrierOp)
    return [
        op.name.removeprefix("tile.").replace("thread.barrier", "|") for op in made.root.walk() if isinstance(op, kinds)
    ]


@pytest.mark.parametrize(
    ("body", "order"),
    [
        (READ + WRITE, "load store"),  # each thread writes what it has read
        (TURNED + WRITE, "load | store"),
        (READ + WRITE_TURNED, "load | store"),
        (WRITE + READ, "store | load"),
        (WRITE + TURNED, "store | load"),
        (WRITE_OTHER + TURNED, "store load"),
        (READ + TURNED.replace("%x", "%y"), "load load"),
        (TURNED + WRITE + READ_AGAIN, "load | store | load"),
        (WRITE + WRITE, "store store"),
        (WRITE + WRITE_TURNED, "store | store"),
        (LOW + HIGH, "store store"),  # parts that lie apart
        (HIGH + LOW, "store store"),
        (LOW + HIGH + READ, "store store | load"),
        (LOW + MIDDLE, "store | store"),
        (WRITE + WRITE_TURNED + READ, "store | store | load"),
        (ADD + ADD, "atomic atomic"),
        (WRITE + ADD, "store | atomic"),
        (ADD + READ, "atomic | load"),
        (TURNED + "thread.barrier\n" + WRITE, "load | store"),
        (WRITE_OTHER + RELEASE, "store | atomic"),
        (READ.replace("%A", "%B") + RELEASE, "load | atomic"),
        (WRITE_OTHER + ADD_ONE, "store atomic"),
        (WRITE_ONE + RELEASE, "store atomic"),
        ("%x = tile.load %B[%1] : float32\n" + RELEASE, "load atomic"),
        ("%x = tile.load_block %B[%0] {axes = (0,)} : tensor<8xfloat32>\n" + RELEASE, "load_block | atomic"),
        (WRITE_OTHER + RELEASE.replace("release", "acq_rel"), "store | atomic"),
        (WRITE_OTHER + RELEASE.replace("release", "acquire"), "store atomic"),
        # Atomic operations and blocks: which thread does what is not known.
        (READ + SAME_ADD, "load | atomic"),
        (LOW + ADD_HIGH, "store atomic"),
        (ADD_HIGH + LOW, "atomic store"),
        (SAME_ADD + WRITE, "atomic | store"),
        ("%x = tile.load_block %A[%0] {axes = (0,)} : tensor<8xfloat32>\n" + WRITE, "load_block | store"),
        (READ + "tile.store_block %one, %A[%0] {axes = (0,)}\n", "load | store_block"),
        (elements("1", "3"), "store store"),
        (elements("1", "1"), "store store"),
        (blocks("0", "4", "0"), "store_block store_block | store_block"),
        (blocks("4", "0"), "store_block store_block"),
        (blocks("0", "3"), "store_block | store_block"),
        (blocks("3", "0"), "store_block | store_block"),
        (blocks("0") + elements("4"), "store_block store"),
        (blocks("0") + elements("3"), "store_block | store"),
        (elements("3") + blocks("4"), "store store_block"),
        (elements("4") + blocks("1"), "store | store_block"),
        (rows("%0, %0", "%1, %0"), "store_block store_block"),
        (rows("%0, %0", "%bx, %0"), "store_block | store_block"),
        (rows("%bx, %0", "%bx, %4"), "store_block store_block"),
        # A view is other places of the same memory.
        (VIEW + WRITE, "store"),
        (WRITE + VIEW + WALK + ROW, "store | load"),
        (WALK + VIEW + ROW + elements("7"), "load | store"),
        (WALK + VIEW + "tile.store %f, %V[%0, %0]\n" + ROW, "store load"),
    ],
)
def test_straight_code(body: str, order: str) -> None:
    assert ordered(body) == order.split()


def looped(body: str) -> str:
    return f"scf.for %0, %3, %1 (%k: int32) {{ {body} scf.yield }}\n"


@pytest.mark.parametrize(
    ("body", "order"),
    [
        (looped(READ + WRITE), "| load store"),  # what another iteration wrote
        (looped(TURNED + WRITE), "| load | store"),
        (looped(READ + WRITE_OTHER), "load store"),
        (looped(ADD), "atomic"),
        (looped(WRITE), "store"),
        (
            looped("%w = arith.add %k, %i : tensor<8xint32> tile.store %one, %A[%w]\n" + ADD.replace("%r", "%w")),
            "| store | atomic",
        ),
        # Where others of an earlier iteration are not known to meet it, it is as the program's author has it.
        (looped(PLACES + "tile.store_block %one, %A[%k] {axes = (0,)}\n" + ADD), "store_block | atomic"),
        (
            VIEW
            + looped(
                PLACES + FOUR + "tile.store_block %one, %A[%k] {axes = (0,)}\n"
                "tile.store_block %h, %V[%0, %k] {axes = (1,)}\n"
            ),
            "store_block | store_block",
        ),
        (looped(WRITE + WRITE_TURNED), "| store | store"),
        (looped(WRITE) + READ, "store | load"),
        (WRITE + looped(READ), "store | load"),
        (looped(looped(READ.replace("%k", "%l")).replace("%k", "%l") + WRITE), "| load store"),
    ],
)
def test_loops(body: str, order: str) -> None:
    assert ordered(body) == order.split()


def test_rows_of_other_iterations_are_other_places() -> None:
    row = "%k0 = arith.mul %k, %eight : int32\n%k8 = arith.add %k0, %i : tensor<8xint32>\n"
    assert ordered(looped(row + "%x = tile.load %B[%k8] : tensor<8xfloat32>\ntile.store %x, %A[%k8]\n")) == [
        "load",
        "store",
    ]
    both = row + "tile.store %one, %A[%k8]\n"
    assert ordered(looped(both) + READ) == ["store", "|", "load"]
    assert ordered(looped(both + "%x = tile.load %A[%k8] : tensor<8xfloat32>\n")) == ["|", "store", "|", "load"]


TWO = """%w = arith.add %k, %i : tensor<8xint32>
%v = arith.{} %w, %eight : tensor<8xint32>
tile.store %one, %A[%w]
tile.store %one, %A[%v]
"""


@pytest.mark.parametrize(
    ("body", "step", "ordered_too"),
    [
        ("%w = arith.add %k, %i : tensor<8xint32>\ntile.store %one, %A[%w]\n", 1, True),
        ("%w = arith.add %k, %i : tensor<8xint32>\ntile.store %one, %A[%w]\n", 7, True),
        ("%w = arith.add %k, %i : tensor<8xint32>\ntile.store %one, %A[%w]\n", 8, False),
        ("%w = arith.sub %i, %k : tensor<8xint32>\ntile.store %one, %A[%w]\n", 7, True),
        ("%w = arith.sub %i, %k : tensor<8xint32>\ntile.store %one, %A[%w]\n", 8, False),
        ("tile.store_block %one, %A[%k] {axes = (0,)}\n", 4, True),
        ("tile.store_block %one, %A[%k] {axes = (0,)}\n", 8, False),
        ("tile.store %f, %A[%k]\n", 1, False),
        # Two places of an iteration, which another one reaches later, or never.
        (TWO.format("add"), 8, True),
        (TWO.format("add"), 16, False),
        (TWO.format("add"), 15, True),
        (TWO.format("sub"), 8, True),
        (TWO.format("sub"), 16, False),
        (TWO.format("sub"), 3, True),
        # In every dimension.
        ("tile.store_block %one, %M[%k, %k] {axes = (1,)}\n", 1, False),
        ("tile.store_block %one, %M[%0, %k] {axes = (1,)}\n", 1, True),
        ("tile.store_block %one, %M[%bx, %k] {axes = (1,)}\n", 1, True),
        ("tile.store %all, %M[%down, %across]\n", 1, True),
        (
            "tile.store_block %one, %M[%0, %k] {axes = (1,)}\ntile.store_block %one, %M[%1, %k8] {axes = (1,)}\n",
            8,
            False,
        ),
        (
            "tile.store_block %one, %M[%1, %k] {axes = (1,)}\ntile.store_block %one, %M[%0, %k8] {axes = (1,)}\n",
            8,
            False,
        ),
        (
            "tile.store_block %one, %M[%1, %k] {axes = (1,)}\ntile.store_block %one, %M[%1, %k8] {axes = (1,)}\n",
            8,
            True,
        ),
        # What is not known to meet is as the program's author has it.
        ("%w = arith.truncdiv %k, %3 : int32\ntile.store_block %one, %A[%w] {axes = (0,)}\n", 1, False),
        ("%w = arith.mul %k, %bx : int32\ntile.store_block %one, %A[%w] {axes = (0,)}\n", 1, False),
        ("%w = arith.mul %k, %k : int32\ntile.store_block %one, %A[%w] {axes = (0,)}\n", 1, False),
        ("tile.store_block %one, %A[%k] {axes = (0,)}\n", "bx", False),
    ],
)
def test_iterations_that_write_the_same_elements_at_other_indices(
    body: str, step: int | str, ordered_too: bool
) -> None:
    head = f"%step = arith.constant {{value = {step}}} : int32\n" if isinstance(step, int) else ""
    loop = looped(PLACES + body).replace("%1 (%k", f"%{'step' if head else step} (%k")
    assert ("|" in ordered(head + loop)) is ordered_too


def test_a_barrier_stands_before_what_another_iteration_has_written() -> None:
    eight = "%step = arith.constant {value = 8} : int32\n"
    for how, order in (("add", "| store store"), ("sub", "store | store")):
        assert ordered(eight + looped(TWO.format(how)).replace("%1 (%k", "%step (%k")) == order.split()
    head = "%v0 = arith.mul %i, %i : tensor<8xint32> %v = arith.add %v0, %k : tensor<8xint32>"
    head += "%w = arith.add %k, %i : tensor<8xint32>"
    for places in ("vw", "wv"):  # of which one is not known to meet the other
        stores = [f"tile.store %one, %A[%{place}]\n" for place in places]
        assert ordered(looped(head + "".join(stores))) == ["store", "|", "store"]


def test_nested_loops_that_write_the_same_elements() -> None:
    nest = """scf.for %0, %3, {} (%l: int32) {{ %p = arith.add %{}, %i : tensor<8xint32>
      %q = arith.add %p, %{} : tensor<8xint32>\ntile.store %one, %A[%q] scf.yield }}\n"""
    eight = "%8 = arith.constant {value = 8} : int32\n"
    for step, places, barrier in (("%8", "kl", True), ("%8", "lb", False), ("%1", "lb", True), ("%8", "kb", True)):
        names = [name.replace("b", "bx") for name in places]
        assert ("|" in ordered(eight + looped(nest.format(step, *names)))) is barrier


def test_branches() -> None:
    test = '%c = arith.cmp %bx, %1 {predicate = "lt"} : bool\n'
    branch = f"{test} scf.if %c {{ {WRITE} scf.yield }} {{ scf.yield }}\n"
    assert ordered(branch + TURNED) == ["store", "|", "load"]
    assert ordered(TURNED + branch) == ["load", "|", "store"]
    assert ordered(TURNED + branch + WRITE) == ["load", "|", "store", "|", "store"]


@T.prim_func
def turned(A: T.Tensor((4, 256), "float32")):
    with T.Kernel(1, threads=128):
        for k in T.serial(3):
            for i in T.Parallel(256):
                A[k + 1, i] = A[k, 255 - i] + 1.0


@T.prim_func
def scaled(A: T.Tensor((4, 256), "float32")):
    with T.Kernel(4, threads=128) as by:
        for i in T.Parallel(256):
            A[by, i] = A[by, i] * 2.0


@pytest.mark.parametrize(("program", "barriers"), [(turned, 2), (scaled, 0)])
def test_emitted(program: Any, barriers: int) -> None:
    kernel = tiledsl.compile(program, target="cuda:90", pass_configs={"unroll-loops.limit": 0})
    assert kernel.source.count("tl.debug_barrier()") == barriers
    assert kernel.asm["ptx"].count("bar.sync") >= barriers

"""Along which threads and points a local buffer's values vary."""

from __future__ import annotations

import random

import pytest

from tests.passes.analysis.points import Place, Points
from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.dependence import ancestors
from tiledsl.analysis.parallel_variance import Variance
from tiledsl.dialects import tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Value

EACH = "tile.parallel {extents = (4,)} (%j: int32) {"


@pytest.mark.parametrize(
    ("body", "varies"),
    [
        (f"{EACH} tile.store %c1.0, %a[%j] }}", False),
        (f"{EACH} %x = tile.load %A[%j, %j] : float32 tile.store %x, %a[%j] }}", False),
        (f"{EACH} %x = tile.load %A[%tx, %j] : float32 tile.store %x, %a[%j] }}", True),
        ("tile.store %c1.0, %a[%c2]", False),
        ("%x = tile.load %A[%tx, %c2] : float32 tile.store %x, %a[%c2]", True),
        ("%i = arith.floormod %tx, %c4 : int32 tile.store %c1.0, %a[%i]", True),  # each writes another one of its own
        # what was stored before stays, where points store the same in all threads
        (f"%x = tile.load %A[%tx, %c2] : float32 tile.store %x, %a[%c2] {EACH} tile.store %c1.0, %a[%j] }}", True),
        (f"{EACH} tile.store %c1.0, %a[%j] }} %x = tile.load %A[%tx, %c2] : float32 tile.store %x, %a[%c2]", True),
        ("%o = tile.atomic %c1.0, %a[%c2] {kind = \"add\"} : float32", True),
    ],
)  # fmt: skip
def test_of_the_array_of_a_thread(body: str, varies: bool) -> None:
    text = f"""%a = tile.alloc : buffer<4*float32, local>
        tile.parallel {{extents = (8,), lockstep = true}} (%tx: int32) {{ {body}
          %y = tile.load %a[%c0] : float32 tile.store %y, %B[%tx, %c0] }}"""
    ops = list(kernel_of(program(text)).walk())
    (buffer,) = [op.out for op in ops if isinstance(op, tile.AllocOp)]
    variance = Variance(next(op for op in ops if isinstance(op, tile.ParallelOp)))
    assert bool(variance.of(buffer) & variance.threads) is varies
    (read,) = [op.out for op in ops if isinstance(op, tile.LoadOp) and op.out.name == "y"]
    assert bool(variance.of(read) & variance.threads) is varies


@pytest.mark.parametrize("used_elsewhere", [False, True])
def test_who_comes_to_a_store_counts_where_others_read_what_it_stores(used_elsewhere: bool) -> None:
    text = f"""%a = tile.alloc : buffer<4*float32, local>
        tile.parallel {{extents = (8,), lockstep = true}} (%tx: int32) {{
          %c = arith.cmp %tx, %c4 {{predicate = "lt"}} : bool
          scf.if %c {{ {EACH} tile.store %c1.0, %a[%j] %y = tile.load %a[%j] : float32 tile.store %y, %B[%tx, %j] }}
            scf.yield }} {{ scf.yield }}
          {"%z = tile.load %a[%c0] : float32 tile.store %z, %B[%tx, %c4]" if used_elsewhere else ""} }}"""
    ops = list(kernel_of(program(text)).walk())
    (buffer,) = [op.out for op in ops if isinstance(op, tile.AllocOp)]
    variance = Variance(next(op for op in ops if isinstance(op, tile.ParallelOp)))
    assert bool(variance.of(buffer) & variance.threads) is used_elsewhere


INNER = "tile.parallel {extents = (2,)} (%q: int32) {"
WHILE = """%y = scf.while [%c0] : int32 (%p: int32) { FIRST
  %t = arith.cmp %p, %c3 {predicate = "lt"} : bool scf.condition %t[%p]
} (%n: int32) { %w = arith.add %n, %c1 : int32 SECOND scf.yield [%w] }"""
COLUMN = "%e = tile.load %N[%j] : int32"
LESS = '%c = arith.cmp %i, %c2 {predicate = "lt"} : bool'


@pytest.mark.parametrize(
    ("body", "axes"),
    [
        ("%x = arith.add %i, %s : int32 %y = arith.add %s, %c1 : int32 %z = arith.add %x, %j : int32",
         {"x": "i", "y": "", "z": "ij"}),
        # What is carried is of where it starts, of what is handed on and of the loop's bounds
        ("%y = scf.for %c0, %c3, %c1[%i] : int32 (%k: int32, %x: int32) { scf.yield [%x] }",
         {"y": "i", "x": "i", "k": ""}),
        ("%y = scf.for %c0, %c3, %c1[%c0] : int32 (%k: int32, %x: int32) { scf.yield [%j] }", {"y": "j", "x": "j"}),
        ("%y = scf.for %c0, %i, %c1[%c0] : int32 (%k: int32, %x: int32) { %z = arith.add %x, %k : int32 "
         "scf.yield [%z] }", {"y": "i", "x": "i", "z": "i", "k": ""}),
        ("%y, %z = scf.for %c0, %c3, %c1[%i, %c0] : int32, int32 (%k: int32, %x: int32, %w: int32) "
         "{ scf.yield [%w, %j] }", {"y": "ij", "x": "ij", "z": "j", "w": "j"}),
        # of a branch: its condition and both sides
        (f"{LESS} %y = scf.if %c : int32 {{ scf.yield [%j] }} {{ scf.yield [%s] }}", {"y": "ij"}),
        (f"{LESS} %y = scf.if %b : int32 {{ scf.yield [%s] }} {{ scf.yield [%j] }}", {"y": "j", "c": "i"}),
        # of a while loop what goes in, what comes back, and what its condition hands on
        (WHILE, {"y": "", "p": "", "n": "", "w": ""}),
        (WHILE.replace("[%w]", "[%e]").replace("SECOND", COLUMN).replace("%p, %c3", "%s, %c3"),
         {"p": "j", "n": "j", "y": "j", "w": "j"}),
        (WHILE.replace("[%c0]", "[%i]").replace("%p, %c3", "%s, %c3"), {"p": "i", "n": "i", "y": "i", "w": "i"}),
        (WHILE.replace("%t[%p]", "%t[%e]").replace("FIRST", COLUMN).replace("[%w]", "[%c1]"),
         {"p": "", "n": "j", "y": "j", "w": "j"}),
        # of local variables: what is stored, and who comes there
        ("tile.store %j, %l %x = tile.load %l : int32", {"x": "j", "l": "j"}),
        ("%x = tile.load %l : int32 tile.store %s, %l", {"x": "", "l": ""}),
        (f"{LESS} scf.if %c {{ tile.store %s, %l scf.yield }} {{ scf.yield }} %x = tile.load %l : int32",
         {"x": "i", "l": "i"}),
        ("scf.for %c0, %j, %c1 (%k: int32) { tile.store %s, %l scf.yield } %x = tile.load %l : int32", {"x": "j"}),
        (f"{LESS} scf.if %c {{ scf.for %c0, %j, %c1 (%k: int32) {{ tile.store %s, %l scf.yield }} scf.yield }} "
         "{ scf.yield } %x = tile.load %l : int32", {"x": "ij"}),
        # a while loop without carried values whose condition depends on the point; the dimension of a parallel inside
        (f"{LESS} scf.while {{ scf.condition %c }} {{ tile.store %s, %l scf.yield }} %x = tile.load %l : int32",
         {"x": "i", "l": "i"}),
        (f"scf.while {{ {LESS} tile.store %s, %l scf.condition %c }} {{ scf.yield }} %x = tile.load %l : int32",
         {"x": "i"}),
        (f"{INNER} %x = arith.add %q, %i : int32 %y = arith.add %j, %c1 : int32 }}", {"x": "iq", "y": "j", "q": "q"}),
        (f"{INNER} tile.store %q, %l }} {INNER.replace('q', 'r')} %x = tile.load %l : int32 }}", {"x": "q", "r": "q"}),
        (INNER.replace("(2,)", "(1,)") + " %x = arith.add %q, %i : int32 }", {"x": "i", "q": ""}),
        ("tile.parallel {extents = (3, 2)} (%x: int32, %q: int32) { }", {"x": "q"}),
        # an atomic operation gives each point what is its own
        ("%x = tile.atomic %c1, %N[%c0] {kind = \"add\"} : int32", {"x": "ij"}),
    ],
)  # fmt: skip
def test_dimensions(body: str, axes: dict[str, str]) -> None:
    variance, named = variance_of(body)
    found = {name: variance.of(named[name]) for name in axes}
    assert found == {name: sum(1 << "ijq".index(each) for each in along) for name, along in axes.items()}
    assert variance.private == [named["l"]] * (variance.of(named["l"]) > 0)


def variance_of(body: str) -> tuple[Variance, dict[str, Value]]:
    body = body.replace("FIRST", "").replace("SECOND", "")
    text = (
        f"%l = tile.alloc : buffer<int32, local> tile.parallel {{extents = (4, 3)}} (%i: int32, %j: int32) {{ {body} }}"
    )
    root = program(text).root
    values = [arg for op in root.walk() for region in op.regions for arg in region.args]
    values += [value for op in root.walk() for value in op.results]
    parallel = next(op for op in root.walk() if isinstance(op, tile.ParallelOp))
    return Variance(parallel), {value.name: value for value in values}


@pytest.mark.parametrize(
    ("inner", "apart"),
    [
        ("tile.store %s, %N[%q]", True),
        ("tile.store %i, %N[%q]", False),  # what threads have each for themselves
        ('%x = thread.reduce %s {kind = "max", group = 32} : int32', False),  # all threads must come there
        ("%x = thread.shuffle %s, %c0 {group = 32} : int32 tile.store %x, %N[%q]", False),
        ("tile.parallel {extents = (2,)} (%r: int32) { tile.store %s, %N[%r] }", True),
    ],
)
def test_what_a_block_does_once_for_all_its_threads(inner: str, apart: bool) -> None:
    text = f"tile.parallel {{extents = (32,), lockstep = true}} (%i: int32) {{ {INNER} {inner} }} }}"
    outer, *others = [op for op in program(text).root.walk() if isinstance(op, tile.ParallelOp)]
    assert Variance(outer).apart == (frozenset(others[:1]) if apart else frozenset())


class Written:
    """Random bodies, of numbers that are named before."""

    def __init__(self, seed: int) -> None:
        self.rng, self.count = random.Random(seed), 0

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def body(self, names: list[str], depth: int, stores: bool = True) -> tuple[str, str]:
        """Lines, and a number to yield."""
        names, lines = list(names), []
        pick = lambda: self.rng.choice([*names, *names[-2:]])
        for _ in range(self.rng.randint(1, 4)):
            made, a, b = self.name(), pick(), pick()
            kind = self.rng.choice(["add", "max", "load", "local", *(["if", "for", "while", "parallel"] * (depth > 0))])
            if kind in ("add", "max"):
                lines.append(f"{made} = arith.{kind} {a}, {b} : int32")
            elif kind == "load":
                lines.append(f"{made} = tile.load %N[{a}] : int32")
            elif kind == "local":
                lines.append((f"tile.store {a}, %l " if stores else "") + f"{made} = tile.load %l : int32")
            elif kind == "parallel":
                made = a
                p, q = self.name(), self.name()
                extents = f"{self.rng.randint(1, 4)}, {self.rng.randint(2, 4)}"
                inner, _ = self.body([*names, p, q], depth - 1, False)
                lines.append(f"tile.parallel {{extents = ({extents})}} ({p}: int32, {q}: int32) {{ {inner} }}")
            else:
                end, k, x, y = (self.name() for _ in range(4))
                (then, first), (orelse, second) = self.body(names, depth - 1, stores), self.body(names, 0, stores)
                lines.append(f"{end} = arith.and {a}, %c3 : int32")
                if kind == "if":
                    lines.append(f"{k} = arith.cmp {end}, %c2 {{predicate = \"lt\"}} : bool "
                                 f"{made} = scf.if {k} : int32 "
                                 f"{{ {then} scf.yield [{first}] }} {{ {orelse} scf.yield [{second}] }}")  # fmt: skip
                elif kind == "for":
                    body, last = self.body([*names, k, x], depth - 1, stores)
                    lines.append(f"{made} = scf.for %c0, {end}, %c1[{b}] : int32 ({k}: int32, {x}: int32) "
                                 f"{{ {body} scf.yield [{last}] }}")  # fmt: skip
                else:
                    body, _ = self.body([*names, y], depth - 1, stores)
                    t, n = self.name(), self.name()
                    lines.append(f"{made} = scf.while [{end}] : int32 ({x}: int32) {{ {t} = arith.cmp {x}, %c3 "
                                 f"{{predicate = \"lt\"}} : bool scf.condition {t}[{x}] }} ({y}: int32) {{ {body} "
                                 f"{n} = arith.add {y}, %c1 : int32 scf.yield [{n}] }}")  # fmt: skip
            names.append(made)
        return "\n".join(lines), pick()


def test_values_differ_only_along_their_dimensions() -> None:
    """What each point of random bodies computes, in each iteration."""
    constant = tried = 0
    for seed in range(100):
        body, _ = Written(seed).body(["%i", "%j", "%s", "%bx", "%c2"], 2)
        try:
            variance, named = variance_of(f"tile.store %s, %l {body}")
        except TileError as error:
            assert "whose condition depends on the point" in str(error)
            continue
        check_places(variance, variance.parallel, [])
        known: dict[tuple[Value, Place, tuple[int, ...]], int] = {}

        def seen(value: Value, number: int, place: Place, turns: tuple[int, ...]) -> None:
            along = tuple(each for each in place if variance.of(value) >> each[0] & 1)
            assert known.setdefault((value, along, turns), number) == number, (seed, value.name)

        Points({named["bx"]: 3, named["s"]: 5}, variance.dims, seen).parallel(variance.parallel)
        values = {value for value, *_ in known}
        tried += len(values)
        constant += sum(not variance.of(value) for value in values)
    assert tried > 1000 and constant > 100


def check_places(variance: Variance, op: tile.ParallelOp, around: list[int]) -> None:
    """Each extent has a dimension of its size, another one than those around it."""
    dims = variance.dims[op]
    along = [*around, *dims]
    assert tuple(variance.extents[dim] for dim in dims) == op.extents and len({*along}) == len(along)
    varying = sum(1 << dim for dim in along if variance.extents[dim] > 1)
    assert variance.active[op] == varying
    sizes = [variance.extents[dim] if dim in along else 1 for dim in range(len(variance.extents))]
    assert variance.shape(varying) == tuple(sizes) and variance.shape(0) == ()
    for inner in op.body.walk():
        if isinstance(inner, tile.ParallelOp):
            outer = next(each for each in ancestors(inner) if isinstance(each, tile.ParallelOp))
            if outer is op:
                check_places(variance, inner, along)

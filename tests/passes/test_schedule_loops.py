"""schedule-loops: the order of loops for Gluon, their clusters, and what the emitter is told; exact IR."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tiledsl.analysis.gluon.plan import CONSUMER_REGISTERS
from tiledsl.dialects.gluon import clusters
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import Program, parse_program
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify
from tiledsl.passes.schedule_loops import ScheduleLoops

HALF, SCORES = "tensor<64x64xfloat16>", "tensor<64x64xfloat32>"


def launch(body: str, options: str = '(("emitter", "gluon"),)') -> Operation:
    """A program with one launch, whose body sees descriptors %Q %K %V %O of float16, a pointer %S and a number %n."""
    names = [*"QKVO", "S"]
    buffers = ", ".join(f"%{name}_: buffer<64*64*{_dtype(name)}, global>" for name in names)
    parameters = ", ".join(f"%{name}: *{_dtype(name)}" for name in names)
    return parse_program(f"""
    tile.func {{sym_name = "test", parameters = ("Q", "K", "V", "O", "S", "n")}} ({buffers}, %n_: int32) {{
      %one = arith.constant {{value = 1}} : int32
      triton.launch [%one], [{", ".join(f"%{name}_" for name in names)}, %n_]
          {{sym_name = "kernel", options = {options}}} ({parameters}, %n: int32) {{
        %zero = arith.constant {{value = 0.0}} : {SCORES}
        %c0 = arith.constant {{value = 0}} : int32
        %c1 = arith.constant {{value = 1}} : int32
        %c8 = arith.constant {{value = 8}} : int32
        {body}
      }}
      scf.yield
    }}""").root


def _dtype(name: str) -> str:
    return "float32" if name == "S" else "float16"


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def scheduled(body: str, warps: int = 4, **options: Any) -> list[str]:
    """The lines of the launch's body after the pass, without constants and indentation."""
    root = launch(body, f'(("num_warps", {warps}), ("emitter", "gluon"))')
    program = parse_program(print_op(root))
    ScheduleLoops(**options).run(program)
    verify(program.root)
    again = print_op(program.root)
    assert print_op(parse_program(again).root) == again
    ScheduleLoops().run(program)  # what is scheduled stays as it is
    assert print_op(program.root) == again
    text = again[again.index("triton.launch") :].splitlines()[1:]
    lines = [line.strip() for line in text if "= arith.constant" not in line]
    return lines[: lines.index("}", next(i for i, line in enumerate(lines) if line.startswith("scf.yield")) + 2)]


def attention(update: str, rescale: str, upper: str = "%c8", parts: int = 1) -> str:
    return f"""
    %part = gluon.warp_group_id {{parts = {parts}}} : int32
    %q = triton.load_block %Q[%part, %c0] {{axes = (0, 1)}} : {HALF}
    %r = scf.for %c0, {upper}, %c1[%zero] : {SCORES} (%i: int32, %acc: {SCORES}) {{
      %v = triton.load_block %V[%i, %c0] {{axes = (0, 1)}} : {HALF}
      {rescale}
      %row = arith.mul %i, %c8 : int32
      %late_row = arith.mul %i, %n : int32
      %k = triton.load_block %K[%row, %c0] {{axes = (0, 1)}} : {HALF}
      %kt = tensor.transpose %k {{permutation = (1, 0)}} : {HALF}
      %s = tensor.dot %q, %kt, %zero : {SCORES}
      {update}
      %p = arith.cast %s : {HALF}
      %sum = tensor.dot %p, %v, %scaled : {SCORES}
      scf.yield [%sum]
    }}
    %out = arith.cast %r : {HALF}
    triton.store_block %out, %O[%part, %c0] {{axes = (0, 1)}}
    """


FACTOR = '%f = tensor.reduce %s {kind = "max", axis = 1} : tensor<64xfloat32>'
OF_SCORES = FACTOR + f"\n%scaled = gluon.rescale %acc, %f : {SCORES}"
EARLIER = f"%scaled = arith.mul %acc, %acc : {SCORES}"


@pytest.mark.parametrize(
    ("update", "rescale", "place", "rescaling"),
    [
        (OF_SCORES, "", "stage = 1, slot = 1", "%scaled = gluon.rescale %acc, %f : tensor<64x64xfloat32>"),
        (FACTOR, EARLIER, "slot = 3", "%scaled = arith.mul %acc, %acc : tensor<64x64xfloat32>"),
    ],
    ids=["late", "each"],
)
def test_attention(update: str, rescale: str, place: str, rescaling: str) -> None:
    expected = f"""
        gluon.schedule {{runs = (true,), query_in_registers = true}}
        %part = gluon.warp_group_id {{parts = 1}} : int32
        %q = triton.load_block %Q[%part, %c0] {{axes = (0, 1), ring = "item"}} : {HALF}
        %r = scf.for %c0, %c8, %c1[%zero] : {SCORES} (%i: int32, %acc: {SCORES}) {{
        gluon.cluster
        %row = arith.mul %i, %c8 : int32
        %k = triton.load_block %K[%row, %c0] {{axes = (0, 1), ring = "k"}} : {HALF}
        %kt = tensor.transpose %k {{permutation = (1, 0)}} : {HALF}
        %s = tensor.dot %q, %kt, %zero : {SCORES}
        gluon.cluster {{slot = 2}}
        %late_row = arith.mul %i, %n : int32
        {FACTOR}
        %p = arith.cast %s : {HALF}
        gluon.cluster {{{place}}}
        {rescaling}
        gluon.cluster {{stage = 1, slot = 1}}
        %v = triton.load_block %V[%i, %c0] {{axes = (0, 1), ring = "v"}} : {HALF}
        %sum = tensor.dot %p, %v, %scaled : {SCORES}
        scf.yield [%sum]
        }}
        %out = arith.cast %r : {HALF}
        triton.store_block %out, %O[%part, %c0] {{axes = (0, 1), ring = "results"}}"""
    assert scheduled(attention(update, rescale)) == lines_of(expected)


def test_a_tile_that_no_product_reads_shares_the_ring_of_the_first_that_is_read_longer() -> None:
    """Of the keys, which the product after it reads, not of the values, which are read in the next stage."""
    text = attention(OF_SCORES, "").replace("tensor.dot %q, %kt", "tensor.dot %scaled_q, %kt")
    load, use = (
        f"%w = triton.load_block %K[%i, %c0] {{axes = (0, 1)}} : {HALF}\n",
        f"%scaled_q = arith.mul %q, %w : {HALF}\n",
    )
    found = scheduled(text.replace("%row =", f"{load}%row =").replace("%kt = tensor", f"{use}%kt = tensor"))
    rings = {line.split()[0]: line.split('ring = "')[1].split('"')[0] for line in found if "triton.load_block" in line}
    assert rings == {"%q": "item", "%w": "k", "%k": "k", "%v": "v"}


@pytest.mark.parametrize("inside", [False, True])
def test_a_tile_that_is_read_behind_all_products_has_no_ring(inside: bool) -> None:
    read = f"%late = arith.cast %w : {SCORES}"
    branch = (
        f"%late = scf.if %always : {SCORES} {{ {read.replace('late', 'w1')}\nscf.yield [%w1] }} {{ scf.yield [%d] }}"
    )
    text = product("%acc", "", branch if inside else read, "%late").replace(
        "%row =", f"%w = triton.load_block %V[%i, %c0] {{axes = (0, 1)}} : {HALF}\n%row ="
    )
    text = '%always = arith.cmp %c0, %n {predicate = "lt"} : bool\n' + text
    with pytest.raises(
        TileError, match=r"(?s)triton.load_block: no product of the turn comes behind .*%w = "
    ) as refused:
        scheduled(text)
    assert "write what reads it before the last product" in refused.value.notes


@pytest.mark.parametrize(
    ("upper", "parts", "expected"),
    [
        ("%n", 1, "gluon.schedule {runs = (false,), query_in_registers = true}"),
        ("%c8", 2, "gluon.schedule {runs = (true,), query_in_registers = true}"),
        ("%c8", 3, "gluon.schedule {runs = (true,), packed = true}"),
    ],
)
def test_what_attention_keeps_in_registers(upper: str, parts: int, expected: str) -> None:
    assert scheduled(attention(OF_SCORES, "", upper, parts))[0] == expected


@pytest.mark.parametrize(
    ("dtype", "parts", "bounds", "options", "in_turns"),
    [
        ("float8_e5m2", 2, "%c0, %c8", {"turns": True}, True),
        ("float8_e5m2", 2, "%c0, %c8", {}, False),
        ("float8_e5m2", 2, "%c0, %c8", {"turns": True, "skew": False}, False),  # none is held back
        ("float16", 2, "%c0, %c8", {"turns": True}, False),  # of 8 bits
        ("float8_e5m2", 1, "%c0, %c8", {"turns": True}, False),  # of two consumers
        ("float8_e5m2", 2, "%c0, %part", {"turns": True}, False),  # of as many turns each
        ("float8_e5m2", 2, "%part, %c8", {"turns": True}, False),
    ],
)
def test_where_consumers_issue_products_in_turns(
    dtype: str, parts: int, bounds: str, options: dict[str, bool], in_turns: bool
) -> None:
    body = attention(OF_SCORES, "", parts=parts).replace("for %c0, %c8", f"for {bounds}")
    program = parse_program(print_op(launch(body)).replace("float16", dtype))
    ScheduleLoops(fours=False, **options).run(program)
    assert ("in_turns = true" in print_op(program.root)) is in_turns


@pytest.mark.parametrize(("fits", "kept"), [((True, True), True), ((True, False), False), ((False, True), False)])
def test_what_is_kept_in_registers_fits_all_loops(
    fits: tuple[bool, bool], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = attention(OF_SCORES, "")
    begin, end = body.index("%r = scf.for"), body.index("%out = ")
    second = re.sub(r"%(?!zero|c\d|n\b|[qQKV]\b)(\w+)", r"%\1_2", body[begin:end])
    answers = iter(fits)
    monkeypatch.setattr("tiledsl.passes.schedule_loops.fits_registers", lambda loop, groups: next(answers))
    root = launch(body[:end] + second + body[end:])
    ScheduleLoops().run(Program(root))
    assert ("query_in_registers = true" in print_op(root)) is kept


def test_without_skew_a_turn_has_no_part_in_the_next() -> None:
    lines = scheduled(attention(OF_SCORES, ""), skew=False)
    assert [line for line in lines if "gluon.cluster" in line] == ["gluon.cluster"]
    assert lines[0] == "gluon.schedule {runs = (true,)}"


def test_factors_that_more_is_computed_from_are_not_late() -> None:
    """A factor from before the scores is not of the turn, nor is one from before the loop, and what is beside the
    rescaling needs it at once."""
    early = OF_SCORES.replace("reduce %s", "reduce %acc")
    beside = OF_SCORES.replace("%scaled", "%once") + f"\n%scaled = arith.add %once, %once : {SCORES}"
    rescale_only, outside = OF_SCORES.partition("\n")[2], FACTOR.replace("reduce %s", "reduce %zero")
    for before, update, rescale in (("", "", early), ("", beside, ""), (outside, rescale_only, "")):
        body = attention(update, rescale).replace("%r = scf", f"{before}\n%r = scf")
        marks = [line for line in scheduled(body) if line.startswith("gluon.cluster")]
        held = "gluon.cluster {stage = 1, slot = 1}"
        assert marks == ["gluon.cluster", "gluon.cluster {slot = 2}", "gluon.cluster {slot = 3}", held]


def product(accumulator: str, options: str, update: str, result: str) -> str:
    return f"""
    %part = gluon.warp_group_id {{parts = 1}} : int32
    %r = scf.for %c0, %c8, %c1[%zero] : {SCORES} (%i: int32, %acc: {SCORES}) {options}{{
      %scale = arith.mul %i, %n : int32
      %at = triton.addptr %S, %i : *float32
      %loaded = triton.load %at : float32
      %row = arith.mul %i, %c8 : int32
      %b = triton.load_block %K[%row, %c0] {{axes = (0, 1)}} : {HALF}
      %a = triton.load_block %Q[%part, %i] {{axes = (0, 1)}} : {HALF}
      %bt = tensor.transpose %b {{permutation = (1, 0)}} : {HALF}
      %d = tensor.dot %a, %bt, {accumulator} : {SCORES}
      {update}
      scf.yield [{result}]
    }}
    """


USE = f"""%factor = arith.cast %scale : float32
      %both = arith.mul %factor, %loaded : float32
      %scaled = arith.mul %d, %both : {SCORES}
      %next = arith.add %acc, %scaled : {SCORES}"""


@pytest.mark.parametrize("options", ["", "{unroll = 4} "])
def test_products_from_zero(options: str) -> None:
    """What is loaded is there before the product is, and asked for before it where turns are taken four at a time; what
    needs that, or the product, is computed behind it."""
    text = product("%zero", "", USE, "%next")
    loaded = "%at = triton.addptr %S, %i : *float32\n%loaded = triton.load %at : float32\n"
    text = text.replace(f"[%zero] : {SCORES} (%i", f"[%zero] {options}: {SCORES} (%i")
    expected = f"""
        gluon.schedule {{runs = (true,)}}
        %part = gluon.warp_group_id {{parts = 1}} : int32
        %r = scf.for %c0, %c8, %c1[%zero] {options}: {SCORES} (%i: int32, %acc: {SCORES}) {{
        {f"gluon.cluster{chr(10)}{loaded}" if options else ""}gluon.cluster
        %a = triton.load_block %Q[%part, %i] {{axes = (0, 1), ring = "a"}} : {HALF}
        %row = arith.mul %i, %c8 : int32
        %b = triton.load_block %K[%row, %c0] {{axes = (0, 1), ring = "a"}} : {HALF}
        %bt = tensor.transpose %b {{permutation = (1, 0)}} : {HALF}
        %d = tensor.dot %a, %bt, %zero : {SCORES}
        {"" if options else loaded}%scale = arith.mul %i, %n : int32
        %factor = arith.cast %scale : float32
        gluon.cluster
        %both = arith.mul %factor, %loaded : float32
        %scaled = arith.mul %d, %both : {SCORES}
        %next = arith.add %acc, %scaled : {SCORES}
        scf.yield [%next]
        }}"""
    assert scheduled(text) == lines_of(expected)


def test_added_products() -> None:
    found = scheduled(product("%acc", "", "", "%d"))
    assert found[0] == "gluon.schedule {runs = (true,), in_flight = ((0,),)}"
    assert found[-3:] == ["%scale = arith.mul %i, %n : int32", "scf.yield [%d]", "}"]


def test_no_more_products_are_in_flight_than_asked_for() -> None:
    assert scheduled(product("%acc", "", "", "%d"), in_flight=0)[0] == "gluon.schedule {runs = (true,)}"


@pytest.mark.parametrize(
    ("added", "results", "in_flight"),
    [(("%x", "%y", "%p"), "%s, %q", "((1, 0),)"), (("%x", "%y", "%q"), "%p, %s", "")],
)
def test_sums_are_in_flight_if_the_last_product_of_each_is_one_of_the_last(
    added: tuple[str, str, str], results: str, in_flight: str
) -> None:
    products = "\n".join(
        f"%{name} = tensor.dot %a, %b, {total} : {SCORES}" for name, total in zip("pqs", added, strict=True)
    )
    found = scheduled(f"""
    %r, %t = scf.for %c0, %n, %c1[%zero, %zero] : {SCORES}, {SCORES} (%i: int32, %x: {SCORES}, %y: {SCORES}) {{
      %a = triton.load_block %Q[%i, %c0] {{axes = (0, 1)}} : {HALF}
      %b = triton.load_block %K[%i, %c0] {{axes = (0, 1)}} : {HALF}
      {products}
      scf.yield [{results}]
    }}
    """)
    assert f"in_flight = {in_flight}" in found[0] if in_flight else "in_flight" not in found[0], found[0]


def decoding(scaled: str) -> str:
    """One tile is keys and values; `scaled` is what the last product is added to."""
    return f"""
    %q = triton.load_block %Q[%c0, %c0] {{axes = (0, 1), ring = "item"}} : {HALF}
    %r, %t = scf.for %c0, %n, %c1[%zero, %c0] : {SCORES}, int32 (%i: int32, %acc: {SCORES}, %count: int32) {{
      %next = arith.add %count, %c1 : int32
      %twice = arith.mul %acc, %acc : {SCORES}
      %k = triton.load_block %K[%i, %c0] {{axes = (0, 1), ring = "turns"}} : {HALF}
      %kt = tensor.transpose %k {{permutation = (1, 0)}} : {HALF}
      %s = tensor.dot %q, %kt, %zero : {SCORES}
      %big = arith.cmp %c8, %n {{predicate = "lt"}} : bool
      %x = scf.if %big : {SCORES} {{
        %y = arith.mul %s, %s : {SCORES}
        scf.yield [%y]
      }} {{
        scf.yield [%s]
      }}
      {FACTOR}
      %p = arith.cast %x : {HALF}
      %sum = tensor.dot %p, %k, {scaled} : {SCORES}
      scf.yield [%sum, %next]
    }}
    triton.store_block %q, %O[%c0, %c0] {{axes = (0, 1), ring = "item"}}
    triton.store_block %q, %O[%c0, %c0] {{axes = (0, 1)}}
    """


def test_products_in_order() -> None:
    """Each follows what it needs, its left operand before what it is added to, and what none needs follows the last."""
    expected = f"""
        gluon.schedule {{runs = (false,), in_flight = ((0,),)}}
        %q = triton.load_block %Q[%c0, %c0] {{axes = (0, 1), ring = "item"}} : {HALF}
        %r, %t = scf.for %c0, %n, %c1[%zero, %c0] : {SCORES}, int32 (%i: int32, %acc: {SCORES}, %count: int32) {{
        gluon.cluster
        %k = triton.load_block %K[%i, %c0] {{axes = (0, 1), ring = "k"}} : {HALF}
        %kt = tensor.transpose %k {{permutation = (1, 0)}} : {HALF}
        %s = tensor.dot %q, %kt, %zero : {SCORES}
        %big = arith.cmp %c8, %n {{predicate = "lt"}} : bool
        %x = scf.if %big : {SCORES} {{
        %y = arith.mul %s, %s : {SCORES}
        scf.yield [%y]
        }} {{
        scf.yield [%s]
        }}
        %p = arith.cast %x : {HALF}
        %twice = arith.mul %acc, %acc : {SCORES}
        %sum = tensor.dot %p, %k, %twice : {SCORES}
        %next = arith.add %count, %c1 : int32
        {FACTOR}
        scf.yield [%sum, %next]
        }}
        triton.store_block %q, %O[%c0, %c0] {{axes = (0, 1), ring = "item"}}
        triton.store_block %q, %O[%c0, %c0] {{axes = (0, 1), ring = "results"}}"""
    root = launch(decoding("%twice"), '(("num_warps", 8), ("emitter", "gluon"))')
    ScheduleLoops().run(Program(root))
    verify(root)
    text = print_op(root)
    lines = [line.strip() for line in text[text.index("triton.launch") :].splitlines()[1:]]
    found = [line for line in lines if "= arith.constant" not in line]
    assert found[: len(lines_of(expected))] == lines_of(expected)


@pytest.mark.parametrize(
    ("scaled", "warps", "in_flight"),
    [
        ("%twice", 8, "in_flight = ((0,),)"),
        ("%twice", 4, "runs = (false,)}"),  # its left operand is in registers
        ("%acc", 8, "runs = (false,)}"),  # nothing reads the sum before it is added to
        ("%zero", 8, "runs = (false,)}"),  # what reads it follows the last product
    ],
)
def test_products_that_the_next_turn_awaits(scaled: str, warps: int, in_flight: str) -> None:
    assert in_flight in scheduled(decoding(scaled), warps)[0]


def unrolled(body: str, stages: int = 2, declared: str = "", **options: Any) -> tuple[int, list[int]]:
    """How many turns of the first loop are taken at a time, and the numbers of products in the clusters of a turn."""
    body = body.replace("[%zero, %c0]", f"[%zero, %c0] {{num_stages = {stages}}}")
    root = launch(body, declared or DECODES)
    ScheduleLoops(**options).run(Program(root))
    loop = next(op for op in root.walk() if op.name == "scf.for")
    found = [[op.name for op in cluster.ops].count("tensor.dot") for cluster in clusters(loop.regions[0])]
    return loop.attributes["unroll"], found


REGISTERS = 48
DECODES = '(("num_warps", 8), ("emitter", "gluon"))'


def test_two_turns_at_a_time() -> None:
    """The second one's first product runs while the first one's is used."""
    body = decoding("%twice")
    assert unrolled(body) == (2, [1, 1]) and unrolled(body, 3) == (2, [1, 1])
    assert unrolled(body, 1)[0] == unrolled(body, pairs=False)[0] == 0  # with one place, the second would wait for ever
    carried = body.replace("%s = tensor.dot %q, %kt, %zero", "%s = tensor.dot %q, %kt, %acc")
    assert unrolled(carried)[0] == 0
    assert unrolled(body.replace("scf.yield [%sum, %next]", "scf.yield [%s, %next]"))[0] == 0  # none waits
    assert unrolled(body, declared='(("num_warps", 4), ("groups", 2), ("emitter", "gluon"))')[0] == 0


def test_loops_that_follow_each_other_take_turns_one_by_one() -> None:
    body = decoding("%twice")
    begin, end = body.index("%r, %t = scf.for"), body.index("triton.store_block")
    names = re.compile(r"%(?!zero|c\d|n\b|q\b|K\b)(\w+)")
    assert unrolled(body[:end] + names.sub(r"%\1_2", body[begin:end]) + body[end:])[0] == 0


def test_two_turns_at_a_time_where_registers_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thread, a turn takes at most REGISTERS at one time, and the scores of the second one 16 more."""
    body = decoding("%twice")
    for given, turns in ((8 * (REGISTERS + 16) // 7 + 1, 2), (8 * (REGISTERS + 16) // 7 - 1, 0)):
        monkeypatch.setitem(CONSUMER_REGISTERS, 2, given)
        assert unrolled(body)[0] == turns
    # What is loaded, from a tile of addresses that are computed where they are needed.
    loading = body.replace(
        "%twice = arith.mul %acc, %acc",
        f"""%where = tensor.broadcast %S : tensor<64x64x*float32>
      %bias = triton.load %where : {SCORES}
      %twice = arith.mul %acc, %bias""",
    )
    monkeypatch.setitem(CONSUMER_REGISTERS, 2, 8 * (REGISTERS + 16) // 7 + 1)
    assert unrolled(loading)[0] == 0
    monkeypatch.setitem(CONSUMER_REGISTERS, 2, 8 * (REGISTERS + 24) // 7 + 1)
    assert unrolled(loading)[0] == 2


def test_clusters() -> None:
    (loop,) = [op for op in launch(product("%zero", "", USE, "%next")).walk() if op.name == "scf.for"]
    assert [len(cluster.ops) for cluster in clusters(loop.regions[0])] == [12]
    root = launch(product("%zero", "", USE, "%next"))
    ScheduleLoops().run(Program(root))
    (loop,) = [op for op in root.walk() if op.name == "scf.for"]
    found = clusters(loop.regions[0])
    assert [(cluster.stage, len(cluster.ops)) for cluster in found] == [(0, 9), (0, 3)]


def test_launches_for_triton_stay_as_they_are() -> None:
    body = product("%acc", "", "", "%d")
    root = launch(body, "()")
    before = print_op(root)
    ScheduleLoops().run(Program(root))
    assert print_op(root) == before


WORK = "%x = triton.load %S : float32\ntriton.store %S, %x"
PURE = "%x = arith.add %j, %i : int32"
INNER = "scf.for %c0, %n, %c1[] (%j: int32) {{\n{}\nscf.yield\n}}\n"
BRANCH = """%m = arith.add %i, %n : int32
%yes = arith.cmp %n, %c8 {{predicate = "lt"}} : bool
scf.if %yes {{
{}
scf.yield
}} {{
scf.yield
}}"""


@pytest.mark.parametrize(
    ("body", "is_kept"),
    [
        (INNER.format(WORK), True),
        (INNER.format(PURE), False),  # which only computes
        (WORK, False),  # no loop inside
        (INNER.format(WORK) + BRANCH.format("%y = arith.add %m, %c1 : int32"), False),
        (BRANCH.format(INNER.format(WORK)), True),
        (
            BRANCH.format(INNER.format(WORK)) + "\n" + BRANCH.format(WORK).replace("%m", "%o").replace("%yes", "%also"),
            False,
        ),
        (BRANCH.format("%y = arith.add %m, %c1 : int32") + "\n" + INNER.format(WORK), True),
    ],
)
def test_loops_that_triton_fails_to_flatten(body: str, is_kept: bool) -> None:
    root = launch(f"scf.for %c0, %c8, %c1[] {{flatten = true}} (%i: int32) {{\n{body}\nscf.yield\n}}", "()")
    before = print_op(root)
    ScheduleLoops().run(Program(root))
    assert print_op(root) == (before if is_kept else before.replace(" {flatten = true}", ""))


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ("gluon.schedule {runs = (1,)}", "runs is (1,), not a truth value for each loop"),
        ("gluon.schedule {runs = (true, true), in_flight = ((),)}", "in_flight is ((),) for 2 loops"),
        ("gluon.cluster {stage = 2}", "stage 2; a loop holds back operations for one turn at most"),
        (f"%x = triton.load_block %Q[%n, %n] {{axes = (1, 0)}} : {HALF}", "axes (1, 0) for a block"),
        (f"%x = triton.load_block %Q[%n, %n] {{axes = (0, 2)}} : {HALF}", "axes (0, 2) for a block"),
        (f"%x = triton.load_block %Q[%n, %n, %n] : {HALF}", "3 starts for a block"),
    ],
)
def test_what_verifiers_say(operation: str, message: str) -> None:
    with pytest.raises(TileError, match=re.escape(message)):
        launch(operation)


def test_values_that_begin_alike_and_change_places() -> None:
    """Triton would take %a and %b for unchanging: after one reading of the body they hold what they held before."""
    loop = """%n2 = arith.mul %n, %c8 : int32
    %n3 = arith.bitcast %n2 : int32
    %r, %s, %t = scf.for %c0, %n, %c1[%n2, INITS] : int32, int32, int32 (%i: int32, %a: int32, %b: int32, %c: int32) {
        scf.yield [YIELDED]
    }"""
    for inits, yielded, groups in (
        ("%n2, %n", "%b, %a, %c", " {alike = ((0, 1),)}"),
        ("%n2, %n2", "%a, %i, %b", " {alike = ((0, 1, 2),)}"),
        ("%n2, %n2", "%a, %i, %c", ""),
        ("%n, %n2", "%c, %i, %i", " {alike = ((0, 2),)}"),
        ("%n3, %n", "%b, %a, %c", " {alike = ((0, 1),)}"),
        ("%c0, %c0", "%a, %c, %b", ""),  # a constant is written for each
    ):
        root = launch(loop.replace("INITS", inits).replace("YIELDED", yielded), options='(("num_warps", 4),)')
        ScheduleLoops().run(Program(root))
        line = next(line for line in print_op(root).splitlines() if "scf.for" in line)
        assert line.strip() == f"%r, %s, %t = scf.for %c0, %n, %c1[%n2, {inits}]{groups} : int32, int32, int32 " + (
            "(%i: int32, %a: int32, %b: int32, %c: int32) {"
        )


def test_a_number_of_products_is_none_or_more() -> None:
    assert scheduled(attention(OF_SCORES, ""), in_flight=0)
    with pytest.raises(TileError, match=r"schedule-loops\.in_flight is -1; it must be a number of products"):
        scheduled(attention(OF_SCORES, ""), in_flight=-1)

"""select-emitter: which tiles and rows TMA moves as boxes."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from tests.passes.ir_cases import program as ir_program
from tiledsl.dialects import scf, tile
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.verifier import verify
from tiledsl.passes.select_emitter import (
    NotRecognised,
    _add_by_box,
    _box_of,
    _load_rows_by_box,
    _store_beside,
    _walks_on,
)


@pytest.mark.parametrize(
    ("type", "is_box"),
    [
        ("64*128*float16, global", True), ("64*8*float16, global", True), ("64*4*float16, global", False),
        ("64*128*float16, global, strides(256, 1)", False), ("64*128*float16, global, strides(128, 1)", False),
        ("64*m*float16, global", False), ("2*2*2*2*64*128*float16, global", False), ("128*float16, global", False),
        ("2*64*128*float16, global", True), ("2*2*64*128*float16, global", True),
        ("2*2*2*64*128*float16, global", True), ("64*128*float16, shared", False),
    ],
)  # fmt: skip
def test_which_buffers_tma_moves_boxes_of(type: str, is_box: bool) -> None:
    leading = "%bx, " * (type.split(" ")[0].count("*") - 2)
    places = "%j" if leading == "" and type.startswith("128") else f"{leading}%i, %j"
    text = f"""
    tile.func {{sym_name = "test", parameters = ("A",), symbols = ("m",), symbol_sources = ("A.1",)}}
        (%A: buffer<{type}>, %m: int32) {{
      %grid = arith.constant {{value = 2}} : int32
      tile.kernel [%grid] (%bx: int32) {{
        %i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
        %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
        %x = tile.load %A[{places}] : tensor<{"1" if places == "%j" else "16"}x8xfloat16>
        scf.yield
      }}
      scf.yield
    }}"""
    (load,) = (op for op in parse_program(text).root.walk() if isinstance(op, tile.LoadOp))
    with contextlib.nullcontext() if is_box else pytest.raises(NotRecognised):
        _box_of(load, load.out.type)


@pytest.mark.parametrize(
    ("places", "type"), [("%bx, %bx", "float16"), ("%bx, %line", "tensor<8xfloat16>"), ("%i, %j, %k", "")]
)
def test_a_box_has_two_dimensions(places: str, type: str) -> None:
    made = ir_program(
        f"""%line = tensor.iota {{axis = 0}} : tensor<8xint32>
        %i = tensor.iota {{axis = 0}} : tensor<2x1x1xint32>
        %j = tensor.iota {{axis = 1}} : tensor<1x2x1xint32>
        %k = tensor.iota {{axis = 2}} : tensor<1x1x8xint32>
        %x = tile.load %{"A" if type else "B"}[{places}] : {type or "tensor<2x2x8xfloat16>"}""",
        parameters="A: 64*64*float16, B: 64*64*64*float16",
    )
    (load,) = (op for op in made.root.walk() if isinstance(op, tile.LoadOp))
    with pytest.raises(NotRecognised, match="is not a box"):
        _box_of(load, load.out.type)


@pytest.mark.parametrize(
    ("places", "is_box"),
    [
        ("%bx, %i, %j", True),
        ("%i, %bx, %j", True),
        ("%i, %j, %bx", False),
        ("%bx, %j, %i", False),
        ("%bx, %bx, %i", False),
    ],
)
def test_a_box_walks_along_the_last_dimension_and_one_before(places: str, is_box: bool) -> None:
    made = ir_program(
        f"""%i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
        %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
        %x = tile.load %A[{places}] : tensor<16x{8 if "%j" in places else 1}xfloat16>""",
        parameters="A: 64*64*64*float16",
    )
    (load,) = (op for op in made.root.walk() if isinstance(op, tile.LoadOp))
    with contextlib.nullcontext() if is_box else pytest.raises(NotRecognised):
        assert _box_of(load, load.out.type)[1] == tuple(n for n, each in enumerate(places.split(", ")) if each != "%bx")


@pytest.mark.parametrize(
    ("value", "left", "free", "stays", "ring"),
    [
        ("16x8", 256, False, 0, ""),
        ("16x8", 255, False, None, ""),
        ("16x8", 255, True, 255, "item"),
        ("16x8", 256, True, 0, ""),
        ("1x8", 256, False, None, ""),  # the same row for all of them
    ],
)
def test_a_result_is_stored_as_a_box_where_it_has_a_place(
    value: str, left: int, free: bool, stays: int | None, ring: str
) -> None:
    made = ir_program(
        f"""%i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
        %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
        %x = arith.constant {{value = 1.0}} : tensor<{value}xfloat16>
        tile.store %x, %A[%i, %j]""",
        parameters="A: 64*64*float16",
    )
    (store,) = (op for op in made.root.walk() if isinstance(op, tile.StoreOp))
    places = [((16, 8), "float16")] * free
    assert _store_beside(store, places, left) == (left if stays is None else stays)
    boxes = [op.ring for op in made.root.walk() if isinstance(op, tile.StoreBlockOp)]
    assert boxes == ([] if stays is None else [ring]) and len(places) == (free and not ring)


@pytest.mark.parametrize(("mask", "left", "rest"), [("", 512, 0), ("", 511, None), (" mask=%m", 512, None)])
def test_a_whole_tile_is_added_as_a_box_where_it_has_a_place(mask: str, left: int, rest: int | None) -> None:
    made = ir_program(
        f"""%i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
        %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
        %m = arith.cmp %i, %c3 {{predicate = "lt"}} : tensor<16x1xbool>
        %x = arith.constant {{value = 1.0}} : tensor<16x8xfloat32>
        %y = tile.atomic %x, %A[%i, %j]{mask} {{kind = "add"}} : tensor<16x8xfloat32>""",
        parameters="A: 64*64*float32",
    )
    (op,) = (op for op in made.root.walk() if isinstance(op, tile.AtomicOp))
    added: list[tile.StoreBlockOp] = []
    assert _add_by_box(op, added, left) == (left if rest is None else rest)
    assert added == [op for op in made.root.walk() if isinstance(op, tile.StoreBlockOp)]
    found = [op.name for op in made.root.walk() if op.name in ("tile.atomic", "tile.store_block")]
    assert found == ["tile.atomic" if rest is None else "tile.store_block"]


ROW_LOADS = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x64xint32>
%flat = tensor.iota {axis = 0} : tensor<64xint32>
%m = arith.cmp %j, %c3 {predicate = "lt"} : tensor<1x64xbool>
scf.for %c0, %c8, %c1 (%k: int32) {
  %x = tile.load %A[%k, %j] : tensor<1x64xfloat32>
  scf.yield
}"""


@pytest.mark.parametrize(
    ("load", "left", "rest"),
    [
        ("%A[%k, %j] : tensor<1x64xfloat32>", 512, 0),
        ("%A[%k, %j] : tensor<1x64xfloat32>", 2000, 1488),
        ("%A[%k, %j] : tensor<1x64xfloat32>", 511, None),
        ("%A[%k, %j] mask=%m : tensor<1x64xfloat32>", 512, None),
        ("%A[%k, %j] mask=%m other=%f : tensor<1x64xfloat32>", 512, None),
        ("%A[%i, %j] : tensor<16x64xfloat32>", 10000, None),
        ("%A[%i, %k] : tensor<16x1xfloat32>", 10000, None),
        ("%A[%k, %flat] : tensor<64xfloat32>", 10000, None),
        ("%B[%k, %j] : tensor<1x64xfloat32>", 512, None),  # whose rows are no multiples of 16 bytes
    ],
)
@pytest.mark.parametrize(("tiles", "has_place"), [(2, False), (1, True), (1, False)])
def test_rows_are_loaded_by_boxes_where_they_have_a_place(
    load: str, left: int, rest: int | None, tiles: int, has_place: bool
) -> None:
    """For two stages; in a loop of two tiles, or where the row is not needed at once."""
    text = ROW_LOADS.replace("%A[%k, %j] : tensor<1x64xfloat32>", load)
    made = ir_program(text, parameters="A: 64*64*float32, B: 64*65*float32, f: float32")
    (loop,) = (op for op in made.root.walk() if isinstance(op, scf.ForOp))
    of = SimpleNamespace(op=loop, of_tiles=[None] * tiles, has_place=lambda op: has_place)
    moves = rest is not None and (tiles > 1 or has_place)
    assert _load_rows_by_box(of, 2, left) == (rest if moves else left)  # type: ignore[arg-type]
    assert [op.name for op in loop.body][-2] == ("tile.load_block" if moves else "tile.load")
    verify(made.root)


@pytest.mark.parametrize(
    ("indices", "walks"),
    [
        ("%at, %j", True), ("%j2, %at", True),
        ("%k, %j", True),
        ("%far, %j", True), ("%near, %j", False), ("%i, %j", False), ("%back, %j", True), ("%k, %k", True),
        ("%read, %j", False),  # by what differs from turn to turn
        ("%shifted, %j", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("nested", [False, True])
def test_whether_each_turn_stores_to_a_place_of_its_own(indices: str, walks: bool, nested: bool) -> None:
    loop = f"""scf.for %c0, %c4, %c1 (%k: int32) {{
      %start = arith.mul %k, %c16 : int32
      %at = arith.add %start, %i : tensor<16x1xint32>
      %step = arith.mul %k, %c40 : int32
      %far = arith.add %step, %i : tensor<16x1xint32>
      %few = arith.mul %k, %c15 : int32
      %near = arith.add %few, %i : tensor<16x1xint32>
      %less = arith.mul %k, %c-16 : int32
      %back = arith.add %less, %i : tensor<16x1xint32>
      %n = tile.load %N[%k] : int32
      %read = arith.add %at, %n : tensor<16x1xint32>
      %shifted = arith.add %at, %s : tensor<16x1xint32>
      tile.store %x, %A[{indices}]
      scf.yield
    }}"""
    head = """%i = tensor.iota {axis = 0} : tensor<16x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x16xint32>
    %j2 = tensor.iota {axis = 1} : tensor<1x16xint32>
    %x = arith.constant {value = 1.0} : tensor<16x16xfloat32>\n"""
    text = f"scf.for %c0, %c2, %c1 (%l: int32) {{ {loop} scf.yield }}" if nested else loop
    if indices == "%k, %k":
        text = text.replace("store %x", "store %c1.0")
    made = ir_program(head + text, parameters="A: 64*64*float32, N: 64*int32, s: int32")
    (store,) = (op for op in made.root.walk() if isinstance(op, tile.StoreOp))
    (inner,) = (op for op in made.root.walk() if isinstance(op, scf.ForOp) and store.parent is op.body)
    assert _walks_on(store, inner) is (walks and not nested)

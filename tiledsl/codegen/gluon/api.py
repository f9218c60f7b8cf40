"""What Gluon's names are in each Triton version. Imports no Triton."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.analysis.gluon.plan import GATHER_WARPS
from tiledsl.analysis.gluon.support import swizzle
from tiledsl.codegen.functions import SIGNATURE_TYPES, TRITON_TYPES
from tiledsl.ir.types import ELEMENTS

IMPORT = "from triton.experimental import gluon"


def imports(in_flight: bool) -> list[str]:
    """Imports of a module. `in_flight`: whether products stay on their way into the next turn of a loop."""
    names = ["fence_async_shared", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait"]
    if in_flight:
        names.insert(-1, "warpgroup_mma_init")
    return [
        IMPORT,
        "from triton.experimental.gluon import language as gl",
        "from triton.experimental.gluon.language.nvidia.hopper import (",
        *(f"    {name}," for name in names),
        ")",
    ]


RING_IMPORTS = (
    IMPORT,
    "from triton.experimental.gluon import language as gl",
    "from triton.experimental.gluon.language.nvidia.ampere import async_copy",
)
DESCRIPTOR_IMPORT = "from triton.experimental.gluon.nvidia.hopper import TensorDescriptor"


# Triton 3.6 has the names on the right, later ones those on the left.
NAMES = """\
_load_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_store_box = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global"""

LOAD_AHEAD = '_load_ahead = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared'
VECTOR = 16  # bytes that a thread copies at once

# Triton 3.6 makes the operation, but has no name for it.
ADD_BOX = '''_add_box = getattr(tma, "async_atomic_add", None)
if _add_box is None:
    from triton.experimental.gluon.language import _core

    @_core.builtin
    def _add_box(tensor_desc, coord, src, _semantic=None):
        """Adds a box of shared memory to global memory."""
        builder = _semantic.builder
        coord = _semantic._convert_to_ir_values(coord, require_i64=False)
        builder.create_async_tma_reduce(_core.ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)'''

BARRIER = """_barrier = getattr(gl, "barrier", None) or gl.thread_barrier"""

FUNCTIONS = (
    NAMES,
    '''@gluon.jit
def _advance(stage, phase, stages: gl.constexpr):
    """The next place in a ring of tiles, and the parity of its barriers' phase."""
    last = stage == stages - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)''',
    '''@gluon.jit
def _barriers(number: gl.constexpr, arrivals: gl.constexpr):
    """So many barriers, each complete after so many arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(number):
        mbarrier.init(barriers.index(i), count=arrivals)
    return barriers''',
)

BALANCED = '''@gluon.jit
def _unpaired(blocks, others, programs):
    """Of a grid of blocks x others: how many of the others are taken block by block, and rows of programs in all."""
    pairs = (blocks + 1) // 2
    left = pairs * others % programs
    unpaired = gl.where(left == 0, 0, gl.minimum(others, (left + programs + pairs - 1) // pairs))
    return unpaired, ((others - unpaired) * pairs + unpaired * blocks + programs - 1) // programs


@gluon.jit
def _balanced(row, blocks, others, unpaired):
    """What a program takes in a row: a block, another one, of which of the others, and how many they are.

    A block takes the longer, the greater it is; pairs of a long and a short one take equally long, and as long as the
    longest one of an odd number. After them come single blocks, the longest first. Rows run to and fro, so that who
    has a longer block in one has a shorter one in the next.
    """
    pairs = (blocks + 1) // 2
    paired = (others - unpaired) * pairs
    turned = gl.num_programs(0) - 1 - gl.program_id(0)
    item = row * gl.num_programs(0) + gl.where(row % 2 == 0, gl.program_id(0), turned)
    pair = item % pairs
    rest = item // pairs
    second = pair - blocks % 2
    count = gl.where(second < 0, 1, 2)
    if item >= paired:
        pair = (item - paired) // unpaired
        rest = others - unpaired + (item - paired) % unpaired
        count = gl.where(pair < blocks, 1, 0)
    return blocks - 1 - pair, second, rest, count'''

# LLVM computes the descriptors of tiles that stay in place before the loop, two registers for each matrix instruction.
ZERO = '''@gluon.jit
def _zero():
    """0, which no compiler knows: what lies there is found anew each time."""
    return gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)'''

# LLVM moves arithmetic behind matrix instructions; ptxas then finds registers of products in flight in use.
PINNED = '''@gluon.jit
def _pinned(x):
    """The same tensor of float32, computed before any product that is issued later."""
    return gl.inline_asm_elementwise("", "=f,0", [x], dtype=gl.float32, is_pure=False, pack=1)'''


def packed(dtype: str) -> str:
    """Functions that keep pairs of 16-bit values in one register, between turns of a loop.

    ptxas may give 16-bit values that a loop carries the halves of registers in the wrong order, and swap them in each
    turn (seen with three consumers: 32 of some 450 instructions). It has no such choice with whole registers.
    """
    element = TRITON_TYPES[dtype].replace("tl.", "gl.")
    return f'''@gluon.jit
def _packed(x):
    """Neighbours in a row, of 16 bits each, as one int32."""
    even, odd = gl.split(gl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))
    return gl.inline_asm_elementwise(
        "mov.b32 $0, {{$1, $2}};", "=r,h,h", [even, odd], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def _unpacked(x, layout: gl.constexpr):
    """What was packed."""
    even, odd = gl.inline_asm_elementwise(
        "mov.b32 {{$0, $1}}, $2;", "=h,=h,r", [x], dtype=({element}, {element}), is_pure=True, pack=1
    )
    return gl.convert_layout(gl.reshape(gl.join(even, odd), [x.shape[0], 2 * x.shape[1]]), layout)'''


# Lanes 0 to 3 share a row. Matrix instructions leave in lane t the columns 2t, 2t + 1, 8 + 2t and 9 + 2t of each 16,
# and want 4t to 4t + 3: halves of words are exchanged, those of two words at a time. Lane t takes one from each of two
# lanes, t with its bits swapped and the neighbour of that.
EXCHANGED = '''_EXCHANGE = gl.constexpr(
    "{ .reg .b32 l, s, q, u, v; .reg .pred odd, high; mov.u32 l, %laneid; "
    "and.b32 s, l, 1; setp.ne.u32 odd, s, 0; and.b32 q, l, 2; setp.ne.u32 high, q, 0; "
    "shl.b32 s, s, 1; shr.u32 q, q, 1; or.b32 s, s, q; and.b32 q, l, 28; or.b32 s, s, q; "
    "selp.b32 q, 0x5410, 0x7632, odd; prmt.b32 u, $2, $3, q; xor.b32 q, q, 0x2222; prmt.b32 v, $2, $3, q; "
    "shfl.sync.idx.b32 v, v, s, 31, -1; xor.b32 s, s, 1; shfl.sync.idx.b32 u, u, s, 31, -1; "
    "selp.b32 q, 0x5410, 0x1054, high; prmt.b32 $0, u, v, q; add.u32 q, q, 0x2222; prmt.b32 $1, u, v, q; }"
)


@gluon.jit
def _exchanged(x):
    """Words of columns as matrix instructions leave them as words of neighbours."""
    return gl.inline_asm_elementwise(_EXCHANGE, "=r,=r,r,r", [x], dtype=gl.int32, is_pure=True, pack=2)'''


def of_words(dtype: str) -> str:
    """A function that gives what lies in words, four elements of 8 bits in each, as an operand."""
    return f'''@gluon.jit
def _of_words(x, layout: gl.constexpr):
    """What lies in words, four elements in each, as an operand."""
    repeated = gl.reshape(x, [x.shape[0], x.shape[1], 1]).broadcast_to([x.shape[0], x.shape[1], 4])
    repeated = gl.convert_layout(gl.reshape(repeated, [x.shape[0], 4 * x.shape[1]]), layout)
    return gl.inline_asm_elementwise(
        "", "=r,0,r,r,r", [repeated], dtype={TRITON_TYPES[dtype].replace("tl.", "gl.")}, is_pure=True, pack=4
    )'''


# What lies at a column of a product with a tile whose rows come in fours (analysis/gluon/words.py).
COLUMNS_IN_FOURS = '''@gluon.jit
def _in_fours(x, columns: gl.constexpr):
    """Which of so many columns lie at x, where a lane has fours of neighbours."""
    half: gl.constexpr = columns // 2
    return x % half // 2 * 4 + x // half * 2 + x % 2'''


def words(dtype: str, in_fours: bool) -> str:
    """A function that rounds to 8 bits, and keeps four elements in one register.

    in_fours: whether columns come in such an order that these are neighbours; else lanes exchange them then.

    Elements of 8 bits that a loop carries are taken apart and put together again in each turn; nor may a wait for
    products mention any. ptxas merges the packing of a word with the second conversion, which goes wrong where both
    pairs are the same (hazards.py): _ROUND_APART packs what may be so by a shift.
    """
    kind = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}[dtype]
    what, pieces, order = "elements of each 16 columns that a lane has", "x.shape[1] // 16, 2, 4, 2", "(0, 1, 3, 2, 4)"
    fours = "gl.reshape(x, [x.shape[0], x.shape[1] * 4, 2, 2])"
    if in_fours:
        what, pieces, order, fours = "neighbours that a lane has", "2, x.shape[1] // 4, 2", "(0, 2, 1, 3)", "x"
    return f'''_ROUND = gl.constexpr(
    "{{ .reg .b16 a, b; cvt.rn.satfinite.{kind}x2.f32 a, $2, $1; cvt.rn.satfinite.{kind}x2.f32 b, $4, $3; "
    "mov.b32 $0, {{a, b}}; }}"
)
_ROUND_APART = gl.constexpr(
    "{{ .reg .b16 a, b; .reg .b32 c, d; "
    "cvt.rn.satfinite.{kind}x2.f32 a, $2, $1; cvt.rn.satfinite.{kind}x2.f32 b, $4, $3; "
    "cvt.u32.u16 c, a; cvt.u32.u16 d, b; shl.b32 d, d, 16; or.b32 $0, c, d; }}"
)


@gluon.jit
def _words(x, rounding: gl.constexpr):
    """The four {what}, of 8 bits each, as one int32."""
    x = gl.permute(gl.reshape(x, [x.shape[0], {pieces}]), {order})
    even, odd = gl.split({fours})
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return gl.inline_asm_elementwise(
        rounding, "=r,f,f,f,f", [first, second, third, fourth], dtype=gl.int32, is_pure=True, pack=1
    )'''


# Triton 3.6 has the name on the right.
IN_WORDS = """\
_seen_as = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret"""


def in_words(place: str, shape: Sequence[int], dtype: str) -> str:
    """A box in shared memory, seen as int32."""
    width = swizzle(shape, dtype)
    layout = f"gl.NVMMASharedLayout(swizzle_byte_width={width if width > 16 else 0}, element_bitwidth=32, rank=2)"
    return f"_seen_as({place}, gl.int32, [{shape[0]}, {shape[1] // 4}], {layout})"


def rescaled(width: int) -> str:
    """A function, named by the width, that multiplies 64 rows and so many columns of a sum by a factor for each row.

    It is for the layout of matrix instructions: a thread has pairs of columns, of one row and of the one 8 below it in
    turn, and so two factors. A warp whose factors are all 1 jumps over the multiplications.
    """
    held = width // 2  # elements of a thread
    return f'''_RESCALE_{width} = gl.constexpr(
    "{{ .reg .pred p, q; "
    "setp.neu.f32 p, ${2 * held}, 0f3F800000; setp.neu.f32 q, ${2 * held + 2}, 0f3F800000; or.pred p, p, q; "  # of 1.0
    "vote.sync.any.pred p, p, 0xffffffff; @!p bra DONE; "
    + " ".join(f"mul.f32 ${{i}}, ${{i}}, ${{{2 * held} + i}};" for i in range({held}))
    + " DONE: }}"
)
_RESCALE_{width}_OPERANDS = gl.constexpr(",".join([*["=f"] * {held}, *map(str, range({held})), *["f"] * {held}]))


@gluon.jit
def _rescaled_{width}(acc, factor):
    """acc * factor; a warp whose factors are all 1 has nothing to do."""
    return gl.inline_asm_elementwise(
        _RESCALE_{width}, _RESCALE_{width}_OPERANDS, [acc, factor], dtype=gl.float32, is_pure=True, pack={held}
    )'''


def shared_layout(box: Sequence[int], dtype: str) -> str:
    """The layout of a box in shared memory, as an expression."""
    width, bits = swizzle(box, dtype), ELEMENTS[dtype].bits
    width = width if width > 16 else 0
    return f"gl.NVMMASharedLayout(swizzle_byte_width={width}, element_bitwidth={bits}, rank={len(box)})"


def gather_layout(tiles: Sequence[tuple[Sequence[int], str]]) -> str:
    """The layout of threads that copy rows of tiles, of these shapes and types, as an expression: of a row, neighbours
    copy up to 128 bytes that lie together in shared memory."""
    held = min(VECTOR * 8 // ELEMENTS[dtype].bits for _, dtype in tiles)
    lanes = min(8, *(shape[1] // held for shape, _ in tiles))
    return f"gl.BlockedLayout([1, {held}], [{32 // lanes}, {lanes}], [{GATHER_WARPS}, 1], [1, 0])"


def descriptor_type(box: Sequence[int], dtype: str) -> str:
    """The type of a descriptor's argument, as a kernel's signature has it."""
    layout = shared_layout(box, dtype).removeprefix("gl.").removesuffix(")")
    full = f"{layout}, transposed=False, fp4_padded=False, cga_layout=[])"
    return f"tensordesc<{SIGNATURE_TYPES[dtype]}{list(box)},{full}>"

"""Random numbers in kernels: Philox 4x32 with 10 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
SC 2011), a function of the seed and of where a number stands in its sequence.

A sequence is one of words of 32 bits, four of which are computed together: words 4 n to 4 n + 3 of sequence s come from
the counter (n mod 2^32, n div 2^32, s mod 2^32, s div 2^32) under the seed's two halves as the key. In sequence 0 they
are what Triton's `tl.randint4x(seed, n)` gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, NamedTuple

from tiledsl.errors import TileError
from tiledsl.language.allocation import alloc_fragment, alloc_var
from tiledsl.language.buffer import Buffer, Var
from tiledsl.language.expression import (
    Expr,
    Scalar,
    as_value,
    binary,
    call,
    cast,
    compare,
    context,
    describe,
    plain,
    select,
)

if TYPE_CHECKING:
    from tiledsl.language.context import TileLoop

__all__ = ["rng_init", "rng_rand", "rng_rand_float"]

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_WORDS = 4  # that a counter gives
_GENERATOR = "curandStatePhilox4_32_10_t"


class Generator(NamedTuple):
    """What a block has drawn from: the key, the sequence (uint32 each) and how many words are behind it (int64)."""

    key: tuple[Var, Var]
    sequence: tuple[Var, Var]
    drawn: Var


def rng_init(seed: Any, seq: Any = None, off: Any = 0, generator: str = _GENERATOR) -> None:
    """Start a sequence of random numbers in each block of the kernel, before T.rng_rand and T.rng_rand_float.

    `seed` and `seq` are integers of up to 64 bits; `off` is the word of the sequence to start from. Without `seq` each
    block has the sequence of its number, with the first grid dimension running fastest. The numbers depend on these and
    on the order of the block's draws alone, and differ from those of TileLang, which draws for each thread. Raises
    TileError for another generator, and in a T.Parallel loop.

    Example:
        T.rng_init(1234)
        for i in T.Parallel(4):
            Y[i] = T.rng_rand_float()
        # Y = [0.1272079, 0.8534689, 0.2656489, 0.7960553]
    """
    ctx = context("T.rng_init")
    if generator != _GENERATOR:
        raise TileError(f"T.rng_init: the generator is {_GENERATOR!r} (Philox), not {describe(generator)}")
    if ctx.kernel is None:
        raise TileError("T.rng_init: random numbers are drawn inside `with T.Kernel(...)`")
    if any(ctx.loops):
        raise TileError("T.rng_init: a block has one sequence; start it before T.Parallel")
    if seq is None:
        seq = 0
        for index, extent in zip(reversed(ctx.kernel.body.args), reversed(ctx.kernel.grid), strict=True):
            seq = cast(seq, "int64") * Scalar(extent) + Scalar(index)
    words = [_halves(name, x) for name, x in (("seed", seed), ("seq", seq))]
    place = Scalar(as_value(_integer("off", off), "int64"))
    if ctx.random is None or ctx.random[0] is not ctx.kernel:  # otherwise another branch may have started the sequence
        key, sequence = ((alloc_var("uint32"), alloc_var("uint32")) for _ in words)
        ctx.random = ctx.kernel, Generator(key, sequence, alloc_var("int64"))
    state = ctx.random[1]
    for variables, halves in zip((state.key, state.sequence), words, strict=True):
        for variable, half in zip(variables, halves, strict=True):
            variable.store(half)
    state.drawn.store(place)


def rng_rand() -> Any:
    """The next random number, a word of the sequence, as a uint32. In T.Parallel each iteration has its own.

    A T.Parallel loop takes as many numbers as it has iterations, whether or not a condition uses them, in row-major
    order, from the next multiple of four words on. Where its last extent is a multiple of four, four iterations share
    the work for one. Raises TileError before T.rng_init, and in a serial loop inside of T.Parallel.

    Example:
        T.rng_init(0)
        for i in T.Parallel(4):
            Y[i] = T.int32(T.rng_rand() % 6) + 1
        # Y = [2, 6, 5, 3]
    """
    return _words("T.rng_rand", 1)[0]


def rng_rand_float(bit: int = 32, dist: str = "uniform") -> Any:
    """The next random number as a float32 or float64: uniform in (0, 1], or normal with mean 0 and deviation 1.

    A uniform float32 takes one word of the sequence, as T.rng_rand does, a uniform float64 and a normal float32 take
    two, and a normal float64 takes four, from a multiple of as many on. The method for "normal" is Box and Muller's.
    Raises TileError where T.rng_rand does, unless `bit` is 32 or 64, and for another `dist`.

    Example:
        T.rng_init(7)
        for i in T.Parallel(4):
            Y[i] = T.rng_rand_float()
        # Y = [0.9545971, 0.7501522, 0.1141774, 0.08565787]
    """
    if bit not in (32, 64) or isinstance(bit, bool):
        raise TileError(f"T.rng_rand_float: bit is {describe(bit)}; it is 32 or 64")
    if dist not in ("uniform", "normal"):
        raise TileError(f"T.rng_rand_float: dist is {describe(dist)}; it is 'uniform' or 'normal'")
    make, size = (_uniform, 1) if bit == 32 else (_uniform_double, 2)
    words = _words("T.rng_rand_float", size if dist == "uniform" else 2 * size)
    if dist == "uniform":
        return make(words)
    radius = call("sqrt", -2.0 * call("log", make(words[:size])))
    return radius * call("cos", 2 * math.pi * make(words[size:]))


def _uniform(words: list[Any]) -> Any:
    """The middle of the word's part of (0, 1], rounded to float32."""
    return cast(words[0], "float32") * 2.0**-32 + 2.0**-33


def _uniform_double(words: list[Any]) -> Any:
    """53 bits of two words, in (0, 1]."""
    high, low = cast(words[0] >> 5, "float64"), cast(words[1] >> 6, "float64")
    return (high * 2.0**26 + low + 1.0) * 2.0**-53


def _words(what: str, count: int) -> list[Any]:
    """The next 1, 2 or 4 words (uint32) of this iteration; those of all iterations are behind the block then."""
    ctx = context(what)
    if ctx.random is None or ctx.random[0] is not ctx.kernel:
        raise TileError(f"{what}: there is no T.rng_init(seed) before it in this kernel")
    state = ctx.random[1]
    loops = _loops_around(what)
    extents = [extent for loop in loops for extent in loop.extents]
    indices = [index for loop in loops for index in loop.indices]
    together = _WORDS // count  # iterations that one counter is enough for
    shared = bool(loops) and together > 1 and extents[-1] % together == 0
    with _before(loops):
        whole = _WORDS if loops else count
        start = (Scalar(state.drawn.value()) + (whole - 1)) // whole * whole
        state.drawn.store(start + math.prod(extents) * count)
        tiles = (
            _tiles_of_words(state, start // _WORDS, [*extents[:-1], extents[-1] // together], count) if shared else []
        )
    if shared:
        place = (*indices[:-1], indices[-1] // together, indices[-1] % together)
        return [Scalar(tile[place].value()) for tile in tiles]
    word = start + _row_major(indices, extents) * count
    words = _philox(state, word // _WORDS)
    first = word % _WORDS
    for size in (2, 1):  # of the half that holds them
        if count <= size:
            lies_behind = compare("ge", first % (2 * size), size)
            words = [select(lies_behind, b, a) for a, b in zip(words[:size], words[size:], strict=True)]
    return words


def _tiles_of_words(state: Generator, start: Any, extents: list[int], count: int) -> list[Buffer]:
    """What counters `start`, `start` + 1, ... give, one for each place of the extents: word i in tile i mod count."""
    tiles = [alloc_fragment((*extents, _WORDS // count), "uint32") for _ in range(count)]

    def body(indices: list[Any]) -> None:
        for number, word in enumerate(_philox(state, start + _row_major(indices, extents))):
            tiles[number % count][(*indices, number // count)].store(word)

    context().parallel(extents, body)
    return tiles


def _loops_around(what: str) -> list[TileLoop]:
    """The T.Parallel loops that are being built, outermost first."""
    loops = list(dropwhile(lambda loop: loop is None, context(what).loops))
    tiles = [loop for loop in loops if loop is not None]
    if len(tiles) < len(loops):
        raise TileError(
            f"{what}: an iteration of T.Parallel draws a fixed number of times, and so not in a serial loop",
            notes=["put the serial loop around T.Parallel, or make it one of T.Parallel's dimensions"],
        )
    return tiles


@contextmanager
def _before(loops: list[TileLoop]) -> Iterator[None]:
    """Emit in front of the loops."""
    ctx = context()
    builder, around = ctx.builder, ctx.loops
    if loops:
        ctx.builder, ctx.loops = loops[0].before, around[: -len(loops)]
        ctx.builder.loc = builder.loc
    try:
        yield
    finally:
        ctx.builder, ctx.loops = builder, around


def _row_major(indices: list[Any], extents: list[int]) -> Any:
    """The number of an iteration, an int64."""
    place = cast(0, "int64")
    for index, extent in zip(indices, extents, strict=True):
        place = place * extent + index
    return place


def _philox(state: Generator, number: Any) -> list[Any]:
    """The four words (uint32) of the counter `number`, an int64."""
    key, sequence = ([Scalar(each.value()) for each in pair] for pair in (state.key, state.sequence))
    counter = [cast(number, "uint32"), cast(number >> 32, "uint32"), *sequence]
    mask = (1 << 32) - 1
    for turn in range(_ROUNDS):
        wide = [cast(counter[2 * i], "uint64") * _fixed(_MULTIPLIERS[i], "uint64") for i in range(2)]
        low = [cast(binary("and", each, _fixed(mask, "uint64")), "uint32") for each in wide]
        high = [cast(each >> 32, "uint32") for each in wide]
        keys = [key[i] + _fixed(_KEY_STEPS[i] * turn & mask, "uint32") for i in range(2)]
        counter = [high[1] ^ counter[1] ^ keys[0], low[1], high[0] ^ counter[3] ^ keys[1], low[0]]
    return counter


def _fixed(number: int, dtype: str) -> Scalar:
    return Scalar(as_value(number, dtype))


def _integer(name: str, x: Any) -> Any:
    x = plain(x)
    of_values = isinstance(x, Expr) and not x.dtype.is_float()
    if of_values or isinstance(x, int) and not isinstance(x, bool) and -(1 << 63) <= x < 1 << 64:
        return x
    raise TileError(f"T.rng_init: {name} is {describe(x)}; it is an integer of up to 64 bits")


def _halves(name: str, x: Any) -> list[Any]:
    """The low and the high 32 bits of an integer."""
    x = _integer(name, x)
    if isinstance(x, int):
        return [x & 0xFFFFFFFF, x >> 32 & 0xFFFFFFFF]
    wide = cast(x, "int64")
    return [cast(wide, "uint32"), cast(wide >> 32, "uint32")]

"""Configurations to search for a program, proposed from its tile IR and the target alone.

A builder's tunables are the parameters that a call leaves open. The role of each is found by building the program
twice, with two values of it, and comparing: a side of a tile of a matrix product, the threads of a block, the depth of
a pipeline, the height of the panels in which blocks are visited. Names only suggest the first value to try.

For programs with matrix products, the proposals combine tiles, depths, warps, and choices of the compiler: pointers or
block copies, persistent grids, split-K, stream-K, Gluon, overlapping launches and, for attention, peeled loops. For
other programs they vary the threads, and sizes around the given ones. A tunable that changes several of these at once,
the tensors that the program takes, or nothing that is visible here, keeps its default.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from tiledsl.autotuner.forks import Ended, in_forks
from tiledsl.autotuner.predicting import work
from tiledsl.autotuner.predicting.machines import machine_of
from tiledsl.autotuner.predicting.rank import SECONDS, rank
from tiledsl.autotuner.predicting.work_types import Work
from tiledsl.autotuner.space import unique
from tiledsl.codegen.gluon import api
from tiledsl.errors import TileError
from tiledsl.ir.types import ELEMENTS
from tiledsl.kernels.jit import JitFunction, jit, resolve_target
from tiledsl.runtime.target import Target

Config = dict[str, Any]
SIDES = ("m", "n", "k")
SMALLEST_ROWS = 16  # of a product in Triton
# (m, n, k of 16-bit elements, warps, stages), from what wins at large, middle and few rows on sm_80 and sm_90.
_PRODUCTS = (
    (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 3), (64, 256, 64, 4, 4),
    (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 5), (64, 64, 128, 4, 4), (64, 32, 128, 4, 4),
    (64, 128, 64, 4, 8), (128, 64, 64, 4, 8), (64, 128, 128, 4, 4), (64, 64, 64, 4, 8),
    (32, 64, 128, 4, 4), (16, 64, 128, 4, 4), (16, 32, 256, 4, 4), (16, 128, 128, 4, 3), (16, 32, 128, 2, 6),
)  # fmt: skip
# (m, n, k, warps, stages) of the same in Gluon, which one producer warp and consumers of 64 rows compute; the first is
# the easiest to fit.
_RINGS = (
    (64, 128, 64, 4, 8), (64, 128, 128, 4, 4), (128, 64, 64, 8, 8), (128, 128, 64, 8, 5), (128, 256, 64, 8, 3),
    (192, 128, 64, 8, 4),
)  # fmt: skip
_CHAINS = ((128, 64, 4, 2), (128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2), (64, 128, 4, 2), (128, 32, 4, 3))
_GLUON_ROWS = 64  # of a consumer
_THREE_CONSUMERS, _NARROW = (192, 128, 8, 2), 64  # which have registers enough for heads of up to so many columns
_AUTOMATIC = {"select-emitter.backend": "auto"}
_GLUON = {"select-emitter.backend": "gluon"}
# Of loops in Gluon, beside what the compiler chooses.
_SCHEDULES: tuple[Mapping[str, Any], ...] = (
    {"select-emitter.rescale": "lazy"}, {"select-emitter.rescale": "each"}, {"select-emitter.consumers": "one"},
    {"select-emitter.stages": 3}, {"select-emitter.stages": 4}, {"schedule-loops.skew": False},
    {"schedule-loops.in_flight": 0}, {"schedule-loops.in_flight": 1},
)  # fmt: skip
_ONE, _APART = ({"select-emitter.consumers": name} for name in ("one", "apart"))
_SCHEDULE_OPTIONS = {name for each in _SCHEDULES for name in each}
_MOST_SCHEDULES = 8  # proposals
_THREADS = (128, 256, 512, 64)
_SPLITS = (2, 4, 8)
_SECOND_LAUNCH_MS = 0.004  # of split-k: its own time, and that of the sums on their way
_SHORT_MS = 0.1  # of products: what a launch gains by beginning while the one before ends is a few microseconds
_STREAMED_WAVES = 3  # of blocks, at most; in more, the last one weighs less than the sums on their way
_BAD_FILL = 0.85  # of all waves, by blocks; one that leaves more idle is worth to be shared
_MOST_STREAMED = 4  # proposals
_FILLED = (
    0.95  # of all waves, by blocks; where less is, the last one is worth to be cut along K, if few blocks are left
)
_LARGE_TILE = 128 * 128  # of which one program fills a multiprocessor
_FIRST_VALUES = {"stage": 2, "thread": 128, "warp": 4, "panel": 8, "group": 8, "swizzle": 8}


@dataclass(frozen=True)
class _Seen:
    """The properties of a program that a tunable may change."""

    products: tuple[tuple[int, int, int], ...]
    threads: int
    stages: tuple[int, ...]
    panel: int
    largest_tile: int
    grid: tuple[int | None, ...]
    parameters: tuple[str, ...]

    @staticmethod
    def of(launch: Work, parameters: tuple[str, ...]) -> _Seen:
        return _Seen(
            tuple((dot.m, dot.n, dot.k) for dot in launch.dots), launch.threads,
            tuple(loop.stages for loop in launch.loops), launch.panel, launch.largest_tile, launch.grid, parameters,
        )  # fmt: skip


def for_program(
    function: Any, *arguments: Any, target: str | Target | None = None, limit: int = 40, **keywords: Any
) -> list[Config]:
    """At most `limit` configurations for a call of a function under @tiledsl.jit, the fastest by the model first.

    `arguments` and `keywords` are the call's, without the tunables to be proposed; `target` is what to tune for, in
    place of the function's own. If all tunables have defaults, these are among the proposals, and what is tuned is not
    slower than the call would be untuned. As `configs=` of @tiledsl.autotune, which tries these first, this function
    itself stands for what it proposes at each call. What certainly does not fit the target is left out. Raises
    TileError if the role of a tunable without a default cannot be determined, or if nothing that is proposed can be
    built.

    Example: `@tiledsl.autotune(configs=tiledsl.spaces.for_program)` above `@tiledsl.jit(out_idx=-1)`
    """
    function = _jitted(function)
    goal = resolve_target(function.options.get("target") if target is None else target)
    bound = function._bind(arguments, keywords, partial=True)
    given = function.signature.bind_partial(*arguments, **keywords).arguments
    ended = in_forks(lambda _: bool(_proposed(function, bound, given, goal)), [0], SECONDS)[0]
    if isinstance(ended, Ended):
        raise TileError(
            f"spaces.for_program: trying values of its tunables, {function.__name__} does not return",
            notes=[ended.message, "list configurations whose values it takes, or give its tunables defaults"],
        )
    program, proposed = _proposed(function, bound, given, goal)
    ranking = rank(lambda config: function.program_for(bound, config), proposed, goal)
    if not ranking.order:
        reasons = [*ranking.pruned.values(), *map(str, ranking.failed.values())]
        raise TileError(f"spaces.for_program: nothing proposed for {function.__name__} works", notes=reasons[:3])
    times = {at: _with_split(ranking.predicted[at], proposed[at], program, goal) for at in ranking.order}
    repeated = _repeated(sorted(times, key=lambda at: (times[at], at)), proposed, program, goal)
    order = [at for at in _ordered(times, proposed) if at not in repeated][:limit]
    chosen = [(proposed[at], times[at]) for at in order]
    own = proposed.index(program.own) if program.own is not None else 0
    if program.own is not None and own not in order and own in {**times, **ranking.slow}:
        chosen[len(order) - (len(order) == limit) :] = [(program.own, math.inf)]
    if not program.first().dots or not goal.has_dependent_launches or not function.takes_launch_option("launch_pdl"):
        return [config for config, _ in chosen]
    return [
        {**config, "launch_pdl": True} if time < _SHORT_MS and config != program.own else config
        for config, time in chosen
    ]


for_program.takes_function = True  # type: ignore[attr-defined]  # how @tiledsl.autotune knows it


def _proposed(
    function: JitFunction, bound: Mapping[str, Any], given: Mapping[str, Any], goal: Target
) -> tuple[_Program, list[Config]]:
    """The program at its first values, and the configurations proposed for it. TileError for unknown tunables."""
    open_names = [name for name in function.signature.parameters if given.get(name) is None]
    tunables = {name: bound.get(name) for name in open_names if _is_number(bound.get(name))}
    for name in _meant_as_none(function, bound, tunables):
        del tunables[name]
    program = _Program(function, bound, tunables)
    roles = program.roles()
    unknown = [name for name, value in tunables.items() if value is None and name not in roles]
    if unknown:
        raise TileError(
            f"spaces.for_program: what {unknown[0]} of {function.__name__} is for cannot be seen",
            notes=["give it a default or a value; recognised are sizes of tiles, threads, stages and panels"],
        )
    if None not in tunables.values():
        program.own = {name: program.base[name] for name in tunables if name in roles}
    return program, unique([*([program.own] if program.own is not None else []), *_proposals(program, roles, goal)])


def _jitted(function: Any) -> JitFunction:
    function = getattr(function, "jit", function)
    if isinstance(function, FunctionType):
        function = jit(function)
    if not isinstance(function, JitFunction):
        raise TileError(f"spaces.for_program: {function!r} is not a function under @tiledsl.jit")
    return function


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


class _Program:
    """A program to be built with different values of its tunables."""

    def __init__(self, function: JitFunction, bound: Mapping[str, Any], tunables: Mapping[str, int | None]) -> None:
        self.function, self.bound = function, bound
        self.base = {name: _first_value(name) if value is None else value for name, value in tunables.items()}
        self.own: Config | None = None  # the defaults of all tunables that are proposed

    def works(self, config: Mapping[str, Any]) -> list[Work]:
        root, options = self.function.program_for(self.bound, config)
        return work.read(root, options)

    def seen(self, config: Mapping[str, Any]) -> _Seen:
        root, options = self.function.program_for(self.bound, config)
        largest = max(work.read(root, options), key=lambda each: each.operations)
        return _Seen.of(largest, tuple(str(arg.type) for arg in root.body.args))

    def first(self) -> Work:
        """The launch with the most products at the base configuration."""
        return max(self.works(self.base), key=lambda each: each.operations)

    def in_gluon(self, config: Mapping[str, Any], target: Target) -> str:
        """What the compiler writes of this configuration in Gluon; "" if it is Triton."""
        try:
            source = self.function.kernel_for(self.bound, {**self.base, **config}, target).source
        except Exception:  # as in roles
            return ""
        return source if api.IMPORT in source else ""

    def roles(self) -> dict[str, str]:
        """For each tunable m, n, k, threads, warps, stages, panel or size, of which there may be several: size, size 2;
        tunables without a recognized role are missing."""
        before = self.seen(self.base)
        by_name: dict[str, str] = {}
        for name, value in self.base.items():
            try:
                role = _role(before, self.seen({**self.base, name: 2 * value}))
            except Exception:  # the builder is the user's code; it may refuse the value
                continue
            sizes = sum(each.startswith("size") for each in by_name.values())
            if role == "size" and sizes:
                role = f"size {sizes + 1}"
            if role and role not in by_name.values():
                by_name[name] = role
        return by_name


def _meant_as_none(
    function: JitFunction, bound: Mapping[str, Any], tunables: Mapping[str, int | None]
) -> tuple[str, ...]:
    """Parameters for which None is a value like others (`out_dtype=None`): with it, the builder builds.

    Others need a number, and where the first that comes to mind is not one that the builder takes, all are tunables.
    """

    def builds(without: Iterable[str], none: str = "") -> bool:
        program = _Program(function, bound, {name: tunables[name] for name in tunables if name not in without})
        try:
            program.works({**program.base, none: None} if none else program.base)
        except Exception:  # the builder is the user's code; it may refuse the value
            return False
        return True

    unset = [name for name, value in tunables.items() if value is None]
    for count in range(len(unset) + 1):
        for kept in itertools.combinations(unset, count):
            if builds(kept):
                return (*kept, *(name for name in unset if name not in kept and builds(kept, name)))
    return ()


def _first_value(name: str) -> int:
    return next((value for part, value in _FIRST_VALUES.items() if part in name.lower()), 64)


def _role(before: _Seen, after: _Seen) -> str:
    if before.parameters != after.parameters:  # what the program is for, and not how it is done
        return ""
    if before.threads != after.threads:
        return "threads" if after.products == before.products else ""
    if before.products and before.products != after.products:
        sides = [side for side, a, b in zip(SIDES, before.products[0], after.products[0]) if a != b]
        return sides[0] if len(sides) == 1 else ""
    if before.stages != after.stages:
        return "stages"
    if before.panel != after.panel and before.grid == after.grid:
        return "panel"
    divided = not before.products and before.grid != after.grid  # into blocks of another size
    return "size" if divided or before.largest_tile != after.largest_tile else ""


def _proposals(program: _Program, roles: Mapping[str, str], target: Target) -> Iterator[Config]:
    first = program.first()
    by_role = {role: name for name, role in roles.items()}
    unit = program.base.get(by_role.get("threads", ""), 0)

    def config(values: Mapping[str, int], **passes: Any) -> Config:
        made: Config = {by_role[role]: value for role, value in values.items() if role in by_role}
        if "threads" in by_role and "threads" in values and unit <= 32:  # the tunable counts warps
            made[by_role["threads"]] = values["threads"] // target.warp_size
        return {**made, "pass_configs": passes["passes"]} if passes.get("passes") else made

    if not first.dots:
        names = [role for role in by_role if role.startswith("size")]
        sizes = [_around(program.base[by_role[role]])[: None if role == "size" else 3] for role in names]
        for *chosen, threads in itertools.product(*sizes, _THREADS):
            yield config({**dict(zip(names, chosen, strict=True)), "threads": threads})
    elif len(first.dots) > 1:
        m, n, warps, stages = _CHAINS[1]
        tiles = {"m": m, "n": n, "threads": 32 * warps, "stages": stages}
        text = program.in_gluon(config(tiles, passes=_GLUON), target) if _is_hopper(target) else ""
        can, one = bool(text), program.in_gluon(config(tiles, passes={**_GLUON, **_ONE}), target) if text else ""
        for m, n, warps, stages in _CHAINS:
            for passes in _chain_choices(target, can and m >= _GLUON_ROWS, text == one):
                yield config({"m": m, "n": n, "threads": 32 * warps, "stages": stages}, passes=passes)
        if can and max(first.dots[0].k, first.dots[1].n) <= _NARROW:
            m, n, warps, stages = _THREE_CONSUMERS
            for passes in (_AUTOMATIC, *_schedules(False)):
                yield config({"m": m, "n": n, "threads": 32 * warps, "stages": stages}, passes=passes)
    else:
        yield from _products(program, config, target)


def _products(program: _Program, config: Callable[..., Config], target: Target) -> Iterator[Config]:
    first = program.first()
    bits = ELEMENTS[first.dots[0].dtype].bits
    for m, n, k, warps, stages in _PRODUCTS:
        values = {"m": m, "n": n, "k": max(16, k * 16 // bits), "threads": 32 * warps, "stages": stages, "panel": 8}
        plain = config(values)
        blocks = _blocks(program, plain)
        if m > SMALLEST_ROWS and _is_half_empty(program, config, values):
            continue
        for passes in _access_choices(target, m, m * n):
            yield config(values, passes=passes)
        if blocks is not None and 2 * blocks <= target.sm_count:
            for splits in _SPLITS:
                yield config(values, passes={"split-k.splits": splits})
        streams = 1 if m * n >= _LARGE_TILE else 2
        waves = (blocks or 0) / (streams * target.sm_count)
        if 1 < waves <= _STREAMED_WAVES and waves / math.ceil(waves) <= _BAD_FILL:
            yield config(values, passes={"split-k.streams": -streams})
    if _is_hopper(target) and bits < 32:
        rings = [
            {"m": m, "n": n, "k": k * 16 // bits, "threads": 32 * warps, "stages": stages, "panel": 8}
            for m, n, k, warps, stages in _RINGS
        ]
        filled = [values for values in rings if not _is_half_empty(program, config, values)]
        in_gluon = [config(values, passes=_GLUON) for values in filled]
        if in_gluon and program.in_gluon(in_gluon[0], target):
            yield from in_gluon
            for values, plain in zip(filled, in_gluon, strict=True):
                if values["m"] * values["n"] >= _LARGE_TILE and _leaves_few(_blocks(program, plain), target.sm_count):
                    yield config(values, passes={**_GLUON, "split-last-wave.programs": -1})


def _leaves_few(blocks: int | None, at_once: int) -> bool:
    """Whether so many blocks are whole waves and a few more, which keep too many multiprocessors waiting."""
    waves, left = divmod(blocks or 0, at_once)
    return bool(waves) and 0 < left <= at_once // 2 and (blocks or 0) / at_once / (waves + 1) <= _FILLED


def _is_half_empty(program: _Program, config: Callable[..., Config], values: Mapping[str, int]) -> bool:
    """Whether tiles of half as many rows would be equally many, so that half of each tile is empty."""
    blocks = _blocks(program, config(values))
    return blocks is not None and blocks == _blocks(program, config({**values, "m": values["m"] // 2}))


def _access_choices(target: Target, rows: int, elements: int) -> list[dict[str, Any]]:
    if not _is_hopper(target):
        return [{}]
    if rows < 64:
        return [{}, {"select-access.mode": "tma", "map-grid.persistent": 0}]
    persistent = {"select-access.mode": "tma", "map-grid.persistent": 1}
    return [{}, {"select-access.mode": "pointer", "map-grid.persistent": 0}, *([persistent] * (elements >= 128 * 64))]


def _chain_choices(target: Target, scheduled: bool, in_one_group: bool) -> list[dict[str, Any]]:
    triton = {"select-emitter.backend": "triton"} if _is_hopper(target) else {}
    first = [_AUTOMATIC, *(_schedules(in_one_group) if scheduled else []), triton] if triton else [triton]
    # Where no loop can be divided, or none by default, two of these have the same source, and it is tried once.
    return [*first, {**triton, "peel-loops.mode": "all"}, {**triton, "peel-loops.mode": "off"}]


def _schedules(in_one_group: bool) -> list[dict[str, Any]]:
    """Of loops in Gluon; those that one group of warps runs can be divided among groups that run apart."""
    return [_GLUON, *({**_GLUON, **each} for each in (*([_APART] * in_one_group), *_SCHEDULES))]


def _is_hopper(target: Target) -> bool:
    return target.kind == "cuda" and target.arch == 90


def _around(size: int) -> list[int]:
    return [size * factor // 4 for factor in (4, 2, 8, 1, 16) if size * factor // 4]


def _blocks(program: _Program, config: Config) -> int | None:
    """Blocks of the largest launch; None if unknown."""
    launch = _largest(program, config)
    return None if launch is None else launch.blocks


def _largest(program: _Program, config: Config) -> Work | None:
    """The launch with the most products; None if it, or its grid, is unknown."""
    try:
        launch = max(program.works({**program.base, **config}), key=lambda each: each.operations)
    except Exception:  # as in roles
        return None
    return None if None in launch.grid else launch


def _with_split(milliseconds: float, config: Config, program: _Program, target: Target) -> float:
    """The model's time, corrected for parts along K, of which the model knows nothing.

    There is less work for each block, or there are full waves of blocks; and a second launch.
    """
    passes = config.get("pass_configs", {})
    splits: int = passes.get("split-k.splits", 1)
    programs: int = -passes.get("split-k.streams", 0) * target.sm_count
    if splits == 1 and not programs:
        return milliseconds
    launch = _largest(program, {name: value for name, value in config.items() if name != "pass_configs"})
    if launch is None:
        return milliseconds
    if programs:
        waves = launch.blocks / programs
        moved = 2 * 2 * programs * launch.dots[0].m * launch.dots[0].n * 4  # two tiles a program, written and read
        moving = moved / machine_of(target).dram / 1e9
        return milliseconds * waves / math.ceil(waves) + moving + _SECOND_LAUNCH_MS
    return milliseconds * max(1 / splits, launch.blocks / target.sm_count) + _SECOND_LAUNCH_MS


def _ordered(times: dict[int, float], proposed: list[Config]) -> list[int]:
    """The fastest first. Streams, whose estimates no measurement has confirmed, are few and behind the best other."""
    order = sorted(times, key=lambda at: (times[at], at))
    streamed = [at for at in order if "split-k.streams" in proposed[at].get("pass_configs", {})]
    others = [at for at in order if at not in streamed]
    first = times[others[0]] if others else 0.0
    kept = {at: (max(times[at], first), True, at) for at in streamed[:_MOST_STREAMED]}
    kept |= {at: (times[at], False, at) for at in others}
    return sorted(kept, key=lambda at: kept[at])


def _repeated(order: list[int], proposed: list[Config], program: _Program, target: Target) -> set[int]:
    """Schedules that are not worth trying: all but the best few of those that are written in Gluon and are not what
    another one of them is, or what the compiler chooses."""
    asked = [at for at in order if _SCHEDULE_OPTIONS & {*proposed[at].get("pass_configs", {})}]
    texts, kept = {""}, list[int]()
    for at in asked if _is_hopper(target) else []:
        passes = proposed[at]["pass_configs"]
        plain = {name: value for name, value in passes.items() if name not in _SCHEDULE_OPTIONS}
        texts.add(program.in_gluon({**proposed[at], "pass_configs": plain}, target))
        text = program.in_gluon(proposed[at], target)
        if text not in texts and len(kept) < _MOST_SCHEDULES:
            kept.append(at)
        texts.add(text)
        if len(kept) == _MOST_SCHEDULES:
            break
    return {*asked} - {*kept}

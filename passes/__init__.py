"""Passes over the IR: one pass a file or folder, and the default pipeline. Imported as `tiledsl.passes`."""

if __name__ != "tiledsl.passes":
    raise ImportError(f"{__name__!r} is not a package of its own: write `import tiledsl.passes`", name=__name__)

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tiledsl.errors import TileError, meant
from tiledsl.ir.pass_manager import PASSES, Pass
from tiledsl.launch_options import pass_options
from tiledsl.logs import note_once
from tiledsl.passes.advance_loads import AdvanceLoads
from tiledsl.passes.canonicalize import Canonicalize
from tiledsl.passes.carry_loads import CarryLoads
from tiledsl.passes.cse import Cse
from tiledsl.passes.dce import Dce
from tiledsl.passes.delay_loads import DelayLoads
from tiledsl.passes.drop_repeated_masks import DropRepeatedMasks
from tiledsl.passes.fit_warps import FitWarps
from tiledsl.passes.fold_rows import FoldRows
from tiledsl.passes.fold_unit_dims import FoldUnitDims
from tiledsl.passes.guard_accesses import GuardAccesses
from tiledsl.passes.hold_tiles import HoldTiles
from tiledsl.passes.join_loads import JoinLoads
from tiledsl.passes.legalize_arith import LegalizeArith
from tiledsl.passes.legalize_layouts import LegalizeLayouts
from tiledsl.passes.licm import Licm
from tiledsl.passes.limit_registers import LimitRegisters
from tiledsl.passes.limit_warps import LimitWarps
from tiledsl.passes.lower_exchanges import LowerExchanges
from tiledsl.passes.lower_tile_ops import LowerTileOps
from tiledsl.passes.lower_to_triton import LowerToTriton
from tiledsl.passes.map_grid import MapGrid
from tiledsl.passes.merge_roles import MergeRoles
from tiledsl.passes.order_accesses import OrderAccesses
from tiledsl.passes.pad_tiles import PadTiles
from tiledsl.passes.parallelize_loops import ParallelizeLoops
from tiledsl.passes.peel_loops import PeelLoops
from tiledsl.passes.pipeline_loops import PipelineLoops
from tiledsl.passes.predicate_loads import PredicateLoads
from tiledsl.passes.promote_buffers import PromoteBuffers
from tiledsl.passes.reduce_after_loops import ReduceAfterLoops
from tiledsl.passes.release_operands import ReleaseOperands
from tiledsl.passes.reload_rows import ReloadRows
from tiledsl.passes.resolve_views import ResolveViews
from tiledsl.passes.schedule_loops import ScheduleLoops
from tiledsl.passes.select_access import SelectAccess
from tiledsl.passes.select_emitter import SelectEmitter
from tiledsl.passes.separate_versions import SeparateVersions
from tiledsl.passes.simplify_ranges import SimplifyRanges
from tiledsl.passes.specs import find_pass, make_pass
from tiledsl.passes.split_k import SplitK
from tiledsl.passes.split_k.last_wave import SplitLastWave
from tiledsl.passes.split_tiles import SplitTiles
from tiledsl.passes.transpose_products import TransposeProducts
from tiledsl.passes.unroll_loops import UnrollLoops
from tiledsl.passes.unrotate_loops import UnrotateLoops
from tiledsl.passes.user_passes import inserted, is_place
from tiledsl.passes.vectorize_parallel import VectorizeParallel
from tiledsl.passes.widen_loops import WidenLoops

# The default pipeline, in order. Options come from `pass_configs`.
PIPELINE: tuple[type[Pass], ...] = (
    Canonicalize,  # the elaborator folds nothing
    MergeRoles,  # one program of the roles that warps were given by hand: no other pass knows barriers between them
    Cse,  # so that later passes see equal indices as one value
    UnrollLoops,  # before anything looks at loops: indices of small local arrays become constants
    ParallelizeLoops,  # loops over rows of tiles: before these rows are picked one by one
    LowerTileOps,  # copy, gemm, reduce, ... become reads, whole-tile operations and writes
    VectorizeParallel,  # per-element loops become whole-tile operations; `if` becomes masks
    ResolveViews,  # T.reshape of on-chip buffers: promotion knows no aliases
    PromoteBuffers,  # on-chip memory disappears: staging copies too, what is left is carried by loops
    JoinLoads,  # tiles that branches load: what looks for loads looks in loops themselves
    SimplifyRanges,  # what promotion left, and comparisons that shapes decide (such as `column < N` for full tiles)
    Cse,
    SeparateVersions,  # tiles that take turns in rings by hand: their indices are known to be in range
    UnrotateLoops,  # pipelines by hand: before anything looks at what a turn loads and multiplies
    ReloadRows,  # before guards: the loads have none yet
    FoldUnitDims,  # before whatever looks at how many dimensions a tile has
    SplitLastWave,  # where asked for: both kernels that multiply then find their emitter
    SelectEmitter,  # attention on Hopper goes to Gluon: before guards, for TMA needs none
    CarryLoads,  # of what is not in Gluon: before guards, which see the indices of the first turn
    GuardAccesses,  # bounds masks on global memory, where ranges do not prove them unneeded
    DropRepeatedMasks,  # selects that say what the masks of loads and stores say: before products look for their loads
    PredicateLoads,  # what branches of pipelined loops load: after guards, which may have been proved by the branch
    SplitK,  # where asked for: one kernel becomes two, each of which then finds its tiles, its accesses and its grid
    SplitTiles,  # 192 = 128 + 64 in products: before pad-tiles, for what is left
    PadTiles,  # Triton's tiles are powers of two: after guards, which reason about the sizes that the user wrote
    LowerExchanges,  # sorts and scatters: their networks need sizes that are powers of two
    LegalizeArith,  # floor division, element types that Triton cannot compute with
    FitWarps,  # for products: tiles have their sizes, and how accesses are made depends on the threads
    SelectAccess,  # blocks that hardware copies: masks must be there, to be seen as bounds
    ReduceAfterLoops,  # sums that loops only add up: tiles have their sizes, and loops are not yet two
    WidenLoops,  # what is added up piece by piece and reduced behind: before the pieces get loops of their own
    PeelLoops,  # masks that are left now, of loads through pointers and of what is computed
    TransposeProducts,  # of few rows: after blocks were chosen by what products read, and loops were copied
    LimitRegisters,  # of what is not in Gluon
    LimitWarps,  # of kernels that reduce; what they load has its masks and its final shapes
    PipelineLoops,  # hints for what is still loaded through pointers, while block indices are apart
    MapGrid,  # the order in which blocks are visited, and how many programs share them
    AdvanceLoads,  # small ones behind reductions: the loops are those that will run now, and no barrier stands yet
    DelayLoads,  # large ones in front of reductions: no barrier stands yet
    FoldRows,  # of tiles that threads share: nothing but loads and stores depends on their shapes any more
    OrderAccesses,  # barriers between threads: the loops are those that will run now
    LowerToTriton,  # pointers and launches; last, so that everything above is free of Triton's idioms
    ReleaseOperands,  # of products in front of loops whose depths are known now
    LegalizeLayouts,  # what Triton lays out badly: the number of threads is known now
    SimplifyRanges,  # address arithmetic
    Licm,  # address tensors do not change in loops
    Cse,  # what two loops computed alike stands before both now
    Dce,
    ScheduleLoops,  # the order of what is left is that of its text, and what stands in loops will not change
    HoldTiles,  # loads that a loop makes again: places are sums of what is left
)

_DEFAULTS = {each: each() for each in PIPELINE}
_DEFAULT_PIPELINE = [_DEFAULTS[each] for each in PIPELINE]

# Names that programs written for other compilers use in pass_configs, and what they mean here.
_ALIASES: dict[str, tuple[str, str, Any]] = {
    "tl.disable_safe_memory_legalize": ("guard-accesses", "enabled", lambda value: not value),
    "tl.config_index_bitwidth": ("lower-to-triton", "index_bits", int),
}


def default_pipeline(options: Mapping[str, Any] | None = None) -> list[Pass]:
    """The passes in order. `options` maps "pass-name.option" to a value; TileError for an option that no pass has.

    Options of other compilers (their names start with "tl.", "tir." or "cuda.") that mean nothing here are noted once
    in the log. "after:pass-name" and "before:pass-name" have passes of the user's, see user_passes.
    """
    options = pass_options(options)
    chosen: dict[str, dict[str, Any]] = {}
    for key, value in options.items():
        if is_place(key):
            continue
        key = str(getattr(key, "value", key))
        if key in _ALIASES:
            name, option, convert = _ALIASES[key]
            try:
                chosen.setdefault(name, {})[option] = convert(value)
            except (TypeError, ValueError):
                raise TileError(f"pass option {key} is {value!r}; it sets {name}.{option}") from None
        elif key.startswith(("tl.", "tir.", "cuda.")):
            note_once(f"the pass option {key} has no effect here")
        else:
            name, _, option = key.partition(".")
            if not option:
                raise TileError(f"pass option {key!r} is not of the form 'pass-name.option'")
            if find_pass(name) is None:
                raise TileError(f"pass option {key!r}: no pass is named {name!r}; {meant(name, sorted(PASSES))}")
            chosen.setdefault(name, {})[option] = value
    pipeline = inserted(_DEFAULT_PIPELINE, options)
    if not chosen:
        return pipeline
    unused = set(chosen) - {each.name for each in pipeline}
    if unused:
        notes = ['a pass of your own gets a place first: passes={"after:promote-buffers": [MyPass()]}']
        raise TileError(f"pass {sorted(unused)[0]} is not in the default pipeline", notes=notes)
    return [_with_options(each, chosen[each.name]) if each.name in chosen else each for each in pipeline]


def _with_options(each: Pass, options: dict[str, Any]) -> Pass:
    given = {option.name: getattr(each, option.name) for option in fields(each)}
    return make_pass(each.name, given | options, {each.name: type(each)})

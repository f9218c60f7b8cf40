"""Races: two blocks, or two iterations of T.Parallel, that write one element, or one that reads what another writes.

What is looked at is the program as the user wrote it, before any pass. Two executions of an access share the sizes and
what is around both; everything else is their own. The order of blocks and of iterations is nowhere defined, so that
there is a race wherever the solver finds two that differ and meet in one element, unless both are atomic; whether
blocks that release and acquire by atomic operations wait for each other stays open. Updates of on-chip elements that
several iterations share, as r[i] += x[i, j], are contributions, and count as atomic. A load counts where its value is
of use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tiledsl.analysis.dependence import ancestors, operands_of, reached
from tiledsl.analysis.parallel_variance import Variance
from tiledsl.certificate import terms
from tiledsl.certificate.access import Access, Unfollowed, rooted
from tiledsl.certificate.accesses import Accesses
from tiledsl.certificate.bounds import name_of, place_of, unclear_in, value_of
from tiledsl.certificate.check import Check
from tiledsl.certificate.needed import needed
from tiledsl.certificate.solver import Solver, shown
from tiledsl.certificate.terms import Variable, both, compare, either, invert
from tiledsl.dialects import scf, thread, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.passes.vectorize_parallel.updates import shared_updates


def check_races(func: tile.FuncOp, solver: Solver) -> Iterator[Check]:
    """One check for each write of an elaborated program, between blocks and between iterations of T.Parallel."""
    program = Accesses(func)
    accesses, unseen = [], []
    variances = _variances(program.all)
    contributed = _contributed(variances)
    for access in program.all:
        if access.parallel is not None and (access.parallel[0], access.buffer) in contributed:
            if access.mode == "read":  # a part of the update
                continue
            access = replace(access, mode="atomic")
        if access.mode == "read" and isinstance(access.op, tile.LoadOp):
            access = replace(access, when=both(access.when, needed(program, access.op)))
        try:
            accesses.append(rooted(access))
        except Unfollowed as reason:
            accesses.append(access)
            unseen.append((access, str(reason)))
    for access, why in unseen:
        if access.mode != "read":
            yield Check("race", f"writes of {name_of(access.buffer)}", "unknown", why, place_of(access))
    for number, access in enumerate(accesses):
        if access.mode == "read":
            continue
        peers = [
            peer for place, peer in enumerate(accesses)
            if peer.buffer is access.buffer and peer.kernel is access.kernel
            and not access.mode == peer.mode == "atomic"
            and (place >= number or peer.mode == "read")
        ]  # fmt: skip
        if access.type is not None and access.type.scope == "global" and access.kernel is not None:
            yield _checked(access, peers, "block", solver)
        is_private = access.type is None or access.type.scope == "local"
        if access.parallel is not None and not is_private and not _is_of_block(access, variances):
            within = [peer for peer in peers if peer.parallel and peer.parallel[0] is access.parallel[0]]
            if access.threads:  # which do one statement after the other in step, if need be by barriers
                within = [peer for peer in within if peer.op is access.op or not _is_ordered(access, peer)]
            yield _checked(access, within, "iteration", solver)


def _variances(accesses: Sequence[Access]) -> dict[Operation, Variance]:
    """What varies in each of the outermost T.Parallels, but for those that no pass takes."""
    found = dict[Operation, Variance]()
    for parallel in dict.fromkeys(access.parallel[0] for access in accesses if access.parallel is not None):
        assert isinstance(parallel, tile.ParallelOp)
        with suppress(TileError):
            found[parallel] = Variance(parallel)
    return found


def _is_of_block(access: Access, variances: Mapping[Operation, Variance]) -> bool:
    """Whether what code for one thread does to tiles is done once, by the block or by the warps of a role."""
    if access.parallel is None or not access.threads:
        return False
    of_tiles = (tile.CopyOp, tile.FillOp, tile.GemmOp, tile.ReduceOp, tile.ScanOp, tile.SortOp)
    variance = variances.get(access.parallel[0])
    apart = frozenset[Operation]() if variance is None else variance.apart
    return isinstance(access.op, of_tiles) or not apart.isdisjoint(ancestors(access.op))


def _contributed(variances: Mapping[Operation, Variance]) -> set[tuple[Operation, Value]]:
    """The outermost T.Parallels, each with a buffer that its iterations access to contribute to elements alone."""
    found = set[tuple[Operation, Value]]()
    for parallel, variance in variances.items():
        with suppress(TileError):  # of a store that canonicalize takes for another one
            found |= {(parallel, update.store.buffer) for update in shared_updates(variance)}
    return found


def _checked(access: Access, peers: Sequence[Access], between: str, solver: Solver) -> Check:
    """Whether one of the others, in another block or iteration, meets the access."""
    subject = f"{between}s that write {name_of(access.buffer)}"
    place = place_of(access)
    reason = ""
    for peer in peers:
        outcome = _meeting(access, peer, between, solver)
        if outcome is None:
            continue
        failed, text = outcome
        if failed and between == "block" and _is_announced(access, peer):
            failed, text = False, f"it is open whether the block that reads waits: {text}"
        if failed:
            return Check("race", subject, "failed", text, place)
        reason = reason or text
    if reason:
        return Check("race", subject, "unknown", reason, place)
    detail = "no other one reads or writes the element" if peers else "only atomically"
    return Check("race", subject, "proved", detail, place)


def _is_announced(access: Access, peer: Access) -> bool:
    """Whether an atomic operation behind the write releases it, and one before the read acquires: blocks may then wait
    for each other, which is not followed."""
    if peer.mode != "read" or access.kernel is None:
        return False
    order = {op: number for number, op in enumerate(access.kernel.walk())}
    atomics = [op for op in order if isinstance(op, tile.AtomicOp)]
    releases = (order[op] > order[access.op] for op in atomics if op.semantics in ("release", "acq_rel"))
    acquires = (order[op] < order[peer.op] for op in atomics if op.semantics in ("acquire", "acq_rel"))
    return any(releases) and any(acquires)


def _is_ordered(access: Access, peer: Access) -> bool:
    """Whether all threads do one of two statements before any does the other: on the chip they do; else see barriers.

    In a loop around both there must be one barrier on the way from each to the other.
    """
    if access.type is not None and access.type.scope != "global":
        return True
    assert access.parallel is not None
    order = {op: number for number, op in enumerate(access.parallel[0].walk())}
    barriers = [op for op in order if isinstance(op, thread.BarrierOp)]
    first, second = sorted((access.op, peer.op), key=order.__getitem__)
    loops = [loop for loop in _loops(first) if loop in _loops(second)]
    between = [op for op in barriers if order[first] < order[op] < order[second] and _follows(op, first, second)]
    if not loops:
        return bool(between)
    around = [
        op for op in barriers
        if loops[0] in _loops(op) and not order[first] < order[op] < order[second] and _follows(op, first, second)
    ]  # fmt: skip
    return bool(between) and bool(around)


def _loops(op: Operation) -> list[Operation]:
    """The loops around an operation, the innermost first."""
    return [around for around in ancestors(op) if isinstance(around, (scf.ForOp, scf.WhileOp))]


def _follows(barrier: Operation, *ops: Operation) -> bool:
    """Whether the regions around a barrier are around one of the operations, too: then it is passed where that is."""
    return any(barrier.parent in (each.parent for each in (op, *ancestors(op))) for op in ops)


def _meeting(access: Access, peer: Access, between: str, solver: Solver) -> tuple[bool, str] | None:
    """Whether it is certain that the two meet, and where or why it is open; None if they never do."""
    apart, shared = _apart(access, peer, between)
    if not apart:
        return None
    (happens, *indices), twins = terms.another([peer.happens, *peer.indices], shared)
    differs = [invert(compare("eq", each, twins.get(each, each))) for each in apart if twins.get(each) is not each]
    for variable in apart:
        if variable not in twins:  # the other access does not depend on it: any other block or iteration will do
            twin = Variable(variable.name, variable.role, variable.lo, variable.hi, variable.loc)
            twin.where = tuple(terms.substitute(variable.where, {variable: twin}))
            differs.append(invert(compare("eq", variable, twin)))
            twins[variable] = twin
    if access.mode == peer.mode == "write" and access.op is peer.op and between == "iteration":
        deciding = _deciding(access)
        differs = [each for each, lane in zip(differs, apart) if lane in deciding]
    meet = [compare("eq", a, b) for a, b in zip(access.indices, indices)]
    question = [*terms.conjuncts(access.happens), *terms.conjuncts(happens), *meet, either(*differs)]
    sizes = [each for each in terms.variables(question) if each.role == "size"]
    answer = solver.find(question, sizes)
    if answer.never:
        return None
    reason = answer.reason or unclear_in(question)
    if reason:
        return False, reason
    values = answer.known
    element = ", ".join(str(value_of(each, values)) for each in access.indices)
    first = shown(values, [*apart, *access.own])
    second = shown({old: values[new] for old, new in twins.items() if new in values}, [*apart, *peer.own])
    verb = {"write": "written", "atomic": "changed", "read": "read"}[peer.mode]
    beside = "" if peer.op is access.op else f" (line {peer.op.loc.line})"
    sizes_text = shown(values, sizes)
    where = f", for {sizes_text}" if sizes_text else ""
    text = f"[{element}] is written where {first}, and {verb}{beside} where {second}{where}"
    return not answer.extreme, answer.extreme + text


def _apart(access: Access, peer: Access, between: str) -> tuple[list[Variable], Callable[[Variable], bool]]:
    """The variables of which one must differ, and which ones both executions have in common."""
    if between == "block":
        return [each for each in access.own if each.role == "block"], lambda each: each.role == "size"
    assert access.parallel is not None
    parallel, count = access.parallel
    outer, inner = {*access.own[:count]}, {*access.own[count:], *peer.own[count:]}
    lanes = [each for each in access.own[count:] if each.role == "lane"][: len(parallel.regions[0].args)]

    def shared(each: Variable) -> bool:
        computed_outside = each.role in ("data", "unknown") and not each.depends_on(inner)
        return each.role == "size" or each in outer or computed_outside

    return lanes, shared


def _deciding(access: Access) -> set[Variable]:
    """The iterations on which it depends what a store writes: others write the same once more."""
    op = access.op
    assert access.parallel is not None
    parallel, count = access.parallel
    if not isinstance(op, tile.StoreOp):
        return {*access.own}
    arguments = dict(zip(parallel.regions[0].args, access.own[count:]))
    deciding = set()
    for value in reached([op.value], lambda value: [] if value in arguments else operands_of(value)):
        if value in arguments:
            deciding.add(arguments[value])
        elif value.op is not None:
            if value.op.regions or isinstance(value.op, tile.LoadOp) and _scope(value.op.buffer) == "local":
                return {*access.own}
        elif isinstance(value.owner, Region) and value.owner.parent is not parallel and _inside(value.owner, parallel):
            return {*access.own}
    return deciding


def _scope(buffer: Value) -> str:
    return tile.buffer_type(buffer).scope


def _inside(region: Region, op: object) -> bool:
    parent = region.parent
    return parent is not None and any(around is op for around in (parent, *ancestors(parent)))

"""Reads of what nobody wrote: on-chip memory and workspaces before the first write, outputs with elements that no block
writes.

For an element that is read, each earlier write is asked whether it wrote it: its lanes and iterations are solved for
from the indices, as 70 = 2 * 32 + 6 says that lane 6 of the third tile did. Where that finds no writer, the solver
looks for one without this guess, so that a read is named only if there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tiledsl.analysis.block_access import root_buffer
from tiledsl.analysis.dependence import ancestors, reached
from tiledsl.certificate import terms
from tiledsl.certificate.access import Access, Unfollowed, rooted
from tiledsl.certificate.accesses import Accesses
from tiledsl.certificate.bounds import name_of, place_of, unclear_in, value_of
from tiledsl.certificate.check import Check
from tiledsl.certificate.needed import needed
from tiledsl.certificate.solver import Solver, shown
from tiledsl.certificate.terms import FALSE, TRUE, Term, Variable, add, both, compare, constant, either, invert
from tiledsl.dialects import scf, tile
from tiledsl.ir.core import Operation, Region, Value


def check_reads(func: tile.FuncOp, solver: Solver) -> Iterator[Check]:
    """One check for each on-chip buffer and workspace of an elaborated program that is read, and for each output."""
    program = Accesses(func)
    accesses: list[Access] = []
    unseen: dict[Value, str] = {}
    for access in program.all:
        try:
            accesses.append(rooted(access))
        except Unfollowed as reason:
            unseen[root_buffer(access.buffer)] = str(reason)
    buffers = dict.fromkeys(each.buffer for each in accesses if isinstance(each.buffer.op, tile.AllocOp))
    for buffer in buffers:
        of_buffer = [(number, each) for number, each in enumerate(accesses) if each.buffer is buffer]
        yield from _buffer(program, buffer, of_buffer, solver, unseen.get(buffer, ""))
    for position in func.outputs:
        output = func.body.args[position]
        writes = [each for each in accesses if each.buffer is output and each.mode != "read"]
        yield _output(program, output, writes, solver, unseen.get(output, ""))


# On-chip memory, workspaces


def _buffer(
    program: Accesses, buffer: Value, accesses: Sequence[tuple[int, Access]], solver: Solver, unseen: str
) -> Iterator[Check]:
    subject = f"reads of {name_of(buffer)}"
    reads = [(number, each) for number, each in accesses if each.mode != "write"]
    writes = [(number, each) for number, each in accesses if each.mode != "read"]
    if not reads:
        return
    proved = Check("read", subject, "proved", "each element is written before", place_of(reads[0][1]))
    checks = [_read(program, number, read, writes, solver, unseen) for number, read in reads]
    left = list(dict.fromkeys(each for each in checks if each is not None))
    yield from left or [proved]


def _read(
    program: Accesses, number: int, read: Access, writes: Sequence[tuple[int, Access]], solver: Solver, unseen: str
) -> Check | None:
    """What is wrong with a read; None if everything was written before. What is outside of a tile is not asked here."""
    subject, place = f"reads of {name_of(read.buffer)}", place_of(read)
    never = [*terms.conjuncts(both(read.happens, read.inside))]
    if isinstance(read.op, tile.LoadOp) and read.inside.number != 1:
        never += terms.conjuncts(needed(program, read.op))
    for place_of_write, write in writes:
        for again in _instances(read, write, place_of_write < number):
            never.append(invert(again))
    answer = solver.find(never)
    if answer.never:
        return None
    why = unseen or answer.reason or unclear_in(never)
    if why:
        return Check("read", subject, "unknown", why, place)
    values = answer.known
    variables = [each for each in values if each.role != "size" or each in read.own]
    fixed = {each: constant(value) for each, value in values.items()}
    for place_of_write, write in writes:
        if _writes_there(read, write, place_of_write < number, fixed, solver):
            who = "an earlier iteration" if tile.is_on_chip(read.buffer) else "a block"
            return Check("read", subject, "unknown", f"{who} may have written it", place)
    element = ", ".join(str(value_of(each, values)) for each in read.indices)
    where = shown(values, [*read.own, *variables])
    detail = f"[{element}] is read before it is written" + (f", where {where}" if where else "")
    return Check("read", subject, "unknown" if answer.extreme else "failed", answer.extreme + detail, place)


def _common(read: Access, write: Access) -> list[Variable]:
    """The loops and blocks around both, from the outermost on.

    Threads run in step, as if they were the innermost loop: what one wrote another one may read, but for what is local.
    """
    shared = []
    apart = () if tile.buffer_type(read.buffer).scope == "local" else read.threads
    for a, b in zip(*([each for each in access.own if each not in apart] for access in (read, write))):
        if a is not b:
            break
        shared.append(a)
    return shared


def _instances(read: Access, write: Access, before: bool) -> Iterator[Term]:
    """Under which conditions the write has written the element: in this iteration, the one before, or the first."""
    common = _common(read, write)
    if before and not _exclusive(read.op, write.op):
        yield _written(write, read.indices, {each: each for each in common})
    for place, loop in enumerate(common):
        if loop.role != "loop":
            continue
        for earlier in (terms.subtract(loop, TRUE), _first(loop)):
            outer: dict[Variable, Term] = {each: each for each in common[:place]}
            yield both(compare("lt", earlier, loop), _written(write, read.indices, {**outer, loop: earlier}))


def _exclusive(a: Operation, b: Operation) -> bool:
    """Whether two operations are in different branches of one `if`."""
    branches: dict[Operation, Region] = {}
    for op in (a, b):
        for inner in (op, *ancestors(op)):
            around, region = inner.parent_op, inner.parent
            if isinstance(around, scf.IfOp) and region and branches.setdefault(around, region) is not region:
                return True
    return False


def _first(loop: Variable) -> Term:
    """The first value of a loop's variable, as its conditions say."""
    for each in loop.where:
        if each.kind == "le" and each.terms[1] is loop:
            return each.terms[0]
    return constant(loop.lo)


def _written(write: Access, element: Sequence[Term], shared: dict[Variable, Term]) -> Term:
    """A condition under which the write wrote the element: sufficient, and usually necessary too.

    `shared`: what the write's variables are, for those that are known. The element is the read's: unless both are in
    the same iteration, the write has variables of its own, and what is read or computed there may be anything.
    """
    own = {each: Variable(each.name, each.role, each.lo, each.hi, each.loc) for each in write.own}
    own = {each: each if shared.get(each) is each else twin for each, twin in own.items()}
    apart = [each for each, twin in own.items() if twin is not each]
    where = [condition for each in write.own for condition in each.where]
    for each in terms.variables([write.happens, *write.indices, *where]):
        if each not in own and each.depends_on(apart):
            own[each] = Variable(each.name, each.role, each.lo, each.hi, each.loc)
    for each in apart:
        own[each].where = tuple(terms.substitute(each.where, own))
    happens, *indices = terms.substitute([write.happens, *write.indices], own)
    solved = {own[each]: to for each, to in shared.items()}
    unsolved = [own[each] for each in write.own if each not in shared]
    digits = _digits(indices, unsolved)
    parted = terms.substitute(indices, digits)
    unsolved += digits.values()
    for _ in range(len(indices)):  # a dimension may tell what another one needs
        for index, at in zip(parted, element):
            _solve(index, at, unsolved, solved)
        _compose(digits, unsolved, solved)
    for digit in digits.values():
        solved.pop(digit, None)
        unsolved.remove(digit)
    for each in unsolved:
        solved.setdefault(each, _first(each))
    chosen = [own[each] for each in apart]
    conditions = [happens, *(each for variable in chosen for each in variable.where)]
    # A loop that both are in has other turns in another thread.
    turns = [
        each for loop in shared if own[loop] is loop for each in loop.where if {*terms.variables([each])} & {*apart}
    ]
    conditions += terms.substitute(turns, own)
    conditions += [compare("eq", index, at) for index, at in zip(indices, element)]
    # What stands for a variable may contain others that are solved for: from the innermost on.
    solved = {each: solved[each] for each in chosen}
    for _ in range(len(solved)):
        solved = dict(zip(solved, terms.substitute(solved.values(), solved)))
    bounds = [compare("ge", to, constant(each.lo)) for each, to in solved.items()]
    bounds += [compare("le", to, constant(each.hi)) for each, to in solved.items()]
    return both(*bounds, *terms.substitute(conditions, solved))


def _solve(index: Term, at: Term, unsolved: Sequence[Variable], solved: dict[Variable, Term]) -> None:
    """Read one index as a number whose digits are the variables in it."""
    (index,) = terms.substitute([index], {each: to for each, to in solved.items() if to is not each})
    turn = None
    if index.kind == "mod" and index.terms[1].number:  # a rotation: of (i + 1) % n, i is (at - 1) % n
        index, turn = index.terms
    digits, base = [], FALSE
    for factors, number in terms.polynomial(index).items():
        inside = [each for each in terms.variables(factors) if each in unsolved and each not in solved]
        if not inside:
            base = add(base, terms.from_polynomial({factors: number}))
        elif len(factors) == 1 and factors[0] is inside[0]:
            digits.append((abs(number), number > 0, inside[0]))
        else:
            return
    remainder = terms.subtract(at, base)
    if turn is not None:
        if len(digits) == 1 and digits[0][0] == 1:
            _, up, digit = digits[0]
            low = constant(digit.lo)
            moved = terms.subtract(remainder if up else terms.negate(remainder), low)
            solved[digit] = add(low, terms.floor_modulo(moved, turn))
        return
    for size, up, digit in digits:  # as if each began at 0 and went up
        remainder = terms.subtract(remainder, constant(size * digit.lo if up else -size * digit.hi))
    for size, up, digit in sorted(digits, key=lambda each: -each[0]):
        step = terms.floor_divide(remainder, constant(size))
        solved[digit] = add(constant(digit.lo), step) if up else terms.subtract(constant(digit.hi), step)
        remainder = terms.subtract(remainder, terms.multiply(constant(size), step))


def _digits(indices: Sequence[Term], unsolved: Sequence[Variable]) -> dict[Term, Variable]:
    """Variables for the quotients and remainders in indices that tell something together: x // c and x % c tell x,
    which neither does alone; so do x // 15, x // 5 % 3 and x % 5."""
    found: dict[Term, Variable] = {}
    inside = dict.fromkeys(reached(list(indices), lambda term: term.terms))
    for rest in inside:
        of = [each for each in terms.variables([rest]) if each in unsolved]
        if of and rest.kind == "mod" and rest.terms[1].number and (whole := terms.floor_divide(*rest.terms)) in inside:
            for part in (whole, rest):
                found.setdefault(part, Variable(of[0].name, of[0].role, part.lo, part.hi, of[0].loc))
    return found


def _compose(digits: dict[Term, Variable], unsolved: Sequence[Variable], solved: dict[Variable, Term]) -> None:
    """Solve what digits that are solved tell together."""
    known = {part: solved[digit] for part, digit in digits.items() if digit in solved}
    before = -1
    while before != len(known):
        before = len(known)
        for rest, low in list(known.items()):
            high = known.get(terms.floor_divide(*rest.terms)) if rest.kind == "mod" else None
            if high is not None and rest.terms[0] not in known:
                value, size = rest.terms
                known[value] = add(terms.multiply(high, size), low)
                _solve(value, known[value], unsolved, solved)


def _writes_there(read: Access, write: Access, before: bool, fixed: dict[Variable, Term], solver: Solver) -> bool:
    """Whether an execution of the write before this one of the read writes the element; True if that is open.

    In a workspace, one of any block may: they may wait for each other.
    """
    if tile.is_on_chip(read.buffer):
        common, before = _common(read, write), before and not _exclusive(read.op, write.op)
    else:
        common, before = [], before or read.kernel is write.kernel
    (happens, *indices), twins = terms.another([write.happens, *write.indices], lambda each: each.role == "size")
    earlier: list[Term] = []
    equal: list[Term] = []
    for variable in common:
        now, then = fixed.get(variable, variable), twins.get(variable, variable)
        if variable.role == "loop":
            earlier.append(both(*equal, compare("lt", then, now)))
        equal.append(compare("eq", then, now))
    if before:
        earlier.append(both(*equal))
    meet = [compare("eq", a, b) for a, b in zip(indices, terms.substitute(read.indices, fixed))]
    only = [compare("eq", twins[each], fixed[each]) for each in common if each.role == "block" and each in twins]
    question = terms.substitute([happens, *meet, *only, either(*earlier)], fixed)
    return not solver.find([each for whole in question for each in terms.conjuncts(whole)]).never


# Outputs


def _output(program: Accesses, output: Value, writes: Sequence[Access], solver: Solver, unseen: str) -> Check:
    subject = f"elements of {name_of(output)}"
    place = place_of(writes[0]) if writes else ""
    type = tile.buffer_type(output)
    if not writes:
        reason = unseen or f"nothing writes {name_of(output)}: it is returned as zeros"
        return Check("read", subject, "unknown" if unseen else "proved", reason, place)
    element = []
    for axis, dim in enumerate(type.shape):
        extent = program.extent(dim)
        at = Variable(f"index {axis}", "lane", 0, extent.hi - 1)
        at.where = () if extent.number is not None else (compare("lt", at, extent),)
        element.append(at)
    stores = [each for each in writes if each.mode == "write" or not _adds(each.op)]
    if not stores:
        detail = f"{name_of(output)} is changed by atomics, but nothing writes what it begins with"
        return Check("read", subject, "failed", detail, place)
    nobody = [invert(_written(each, _at(each, program, element), {})) for each in stores]
    answer = solver.find(nobody)
    if answer.never:
        return Check("read", subject, "proved", "every element is written", place)
    why = unseen or answer.reason or unclear_in(nobody)
    if why:
        return Check("read", subject, "unknown", why, place)
    values = {**{each: each.lo for each in element}, **answer.known}
    fixed = {each: constant(value) for each, value in values.items() if each in element or each.role == "size"}
    for write in stores:
        place_there = terms.substitute(_at(write, program, element), fixed)
        meet = [compare("eq", a, b) for a, b in zip(write.indices, place_there)]
        question = terms.substitute([*terms.conjuncts(write.happens), *meet], fixed)
        if not solver.find(question).never:
            return Check("read", subject, "unknown", "which block writes an element could not be solved for", place)
    text = ", ".join(str(values[each]) for each in element)
    sizes = shown(values, [each for each in terms.variables(nobody) if each.role == "size"])
    where = f", where {sizes}" if sizes else ""
    detail = f"{answer.extreme}no block writes [{text}] of the output{where}"
    return Check("read", subject, "unknown" if answer.extreme else "failed", detail, place)


def _adds(op: Operation) -> bool:
    """Whether an atomic needs what the element was before."""
    return isinstance(op, tile.AtomicOp) and op.kind not in ("exchange", "store")


def _at(write: Access, program: Accesses, element: Sequence[Term]) -> list[Term]:
    """The element in the indices that the access has: a flat one, where a view was resolved so."""
    if len(write.indices) == len(element):
        return list(element)
    flat = FALSE
    for at, dim in zip(element, tile.buffer_type(write.buffer).shape):
        flat = add(terms.multiply(flat, program.extent(dim)), at)
    return [flat]

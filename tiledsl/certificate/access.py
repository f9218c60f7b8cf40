"""One access to memory: which element, as terms, and when. Accesses finds those of a program."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tiledsl.certificate import terms
from tiledsl.certificate.terms import FALSE, TRUE, Term, Variable, add, both, compare, constant, multiply
from tiledsl.dialects import tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import BufferType


class Unfollowed(Exception):
    """The walk met something that it has no rule for; the text says what."""


@dataclass(frozen=True, eq=False)
class Access:
    """One access, in one execution.

    `indices` are one for each of `extents`, the buffer's sizes; for accesses through pointers there is one index, the
    distance from the buffer's first element, and one extent. `when`: what is true where it happens. `clipped`: what
    lies outside of the buffer is left out, so that `when` need not say it. `own`: the variables that tell executions
    apart, from the outermost on.
    """

    op: Operation
    mode: str  # read, write, atomic
    buffer: Value
    indices: tuple[Term, ...]
    extents: tuple[Term, ...]
    when: Term
    clipped: bool
    own: tuple[Variable, ...]
    kernel: Operation | None = None
    parallel: tuple[Operation, int] | None = None  # the outermost T.Parallel, and how many of `own` are outside of it

    @property
    def type(self) -> BufferType | None:
        """The buffer's type, where it is known which one it is."""
        return self.buffer.type if isinstance(self.buffer.type, BufferType) else None

    @property
    def threads(self) -> tuple[Variable, ...]:
        """The indices of the thread, of an access in code for one thread."""
        if self.parallel is None or not self.parallel[0].attributes["lockstep"]:
            return ()
        op, count = self.parallel
        return self.own[count : count + len(op.regions[0].args)]

    @property
    def inside(self) -> Term:
        """That the indices lie in the buffer."""
        pairs = list(zip(self.indices, self.extents))
        return both(*(part for at, size in pairs for part in (compare("ge", at, FALSE), compare("lt", at, size))))

    @property
    def happens(self) -> Term:
        """`when`, and that the element exists where what lies outside is left out."""
        return both(self.when, self.inside) if self.clipped else self.when


def rooted(access: Access) -> Access:
    """The access as one to the buffer that a view shows, by one flat index where the shapes differ."""
    while isinstance(access.buffer.op, tile.ViewOp):
        view = access.buffer.op
        source, shown = tile.buffer_type(view.source), tile.buffer_type(view.out)
        if source.dtype != shown.dtype:
            raise Unfollowed(f"{view.source.name} is seen as {shown.dtype}")
        if source.strides is not None or shown.strides is not None:
            raise Unfollowed(f"{view.source.name} has strides and another shape")
        flat, length = flattened(access)
        access = replace(access, when=access.happens)  # what lies outside of the view is left out
        if source.is_static:
            indices, rest = [], flat
            for size in reversed(source.static_shape[1:]):
                indices.append(terms.floor_modulo(rest, constant(size)))
                rest = terms.floor_divide(rest, constant(size))
            indices.append(rest)
            extents = tuple(map(constant, source.static_shape))
            access = replace(access, buffer=view.source, indices=tuple(indices[::-1]), extents=extents)
        else:
            access = replace(access, buffer=view.source, indices=(flat,), extents=(length,))
    return access


def flattened(access: Access) -> tuple[Term, Term]:
    """The row-major index of the element, and the number of elements."""
    flat, length = FALSE, TRUE
    for index, size in zip(access.indices, access.extents):
        flat, length = add(multiply(flat, size), index), multiply(length, size)
    return flat, length

"""Each stage of a program in the generic form: xDSL verifies it, and both of our reading and xDSL's give it back.

`make interchange` (python -m tests.interchange.whole FIRST COUNT) takes all examples and many random programs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tests.golden.programs import EXAMPLES, Golden, example_programs, named_programs, random_programs
from tests.interchange import foreign
from tests.support.programs import NAMED
from tiledsl.errors import TileError
from tiledsl.interchange.parser import GenericParser, read_program
from tiledsl.interchange.printer import print_generic
from tiledsl.ir.core import Operation
from tiledsl.ir.parser import parse_op
from tiledsl.ir.printer import print_op
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.target import Target


def check(text: str, *, elsewhere: bool = True) -> None:
    """The text form of a program: through the generic form, and (`elsewhere`) through xDSL's hands as well."""
    root = parse_op(text)
    full = print_op(root, locations=True)
    generic = print_generic(root, locations=True)
    twin = read_program(generic).root
    assert print_op(twin, locations=True) == full
    assert print_generic(twin, locations=True) == generic
    if elsewhere:
        module = foreign.read(generic)
        assert nameless(GenericParser(foreign.text_of(module), "<ir>").read()) == nameless(root)


def nameless(root: Operation) -> str:
    """The text with numbers for names, which other tools change."""
    for op in root.walk():
        for value in [*op.results, *(arg for region in op.regions for arg in region.args)]:
            value.name = ""
    return print_op(root)


def stages(golden: Golden) -> list[str]:
    """The IR after each pass that changes it; of a program that is refused, nothing."""
    try:
        kernel = Kernel(golden.build, Target.parse(golden.target), golden.options)
        texts = [stage.text or "" for stage in kernel.stages if stage.name != "source"]
    except TileError:
        return []
    return list(dict.fromkeys(text for text in texts if text.startswith("tile.func")))


def check_all(programs: Iterable[Golden], every: int = 1) -> int:
    """Check each program's stages, every so many of them and the last; the number of those."""
    count = 0
    for golden in programs:
        found = stages(golden)
        for text in [*found[:-1:every], *found[-1:]]:
            try:
                check(text)
            except Exception as error:
                raise AssertionError(f"{golden.name}: {error}\n{text}") from error
            count += 1
    return count


def main() -> None:
    first, count = (int(text) for text in sys.argv[1:3])
    for name in EXAMPLES:
        print(name, check_all(example_programs(name)), flush=True)
    for name in NAMED:
        print(name, check_all(named_programs(name)), flush=True)
    print("random programs", check_all(random_programs(range(first, first + count))), flush=True)


if __name__ == "__main__":
    main()

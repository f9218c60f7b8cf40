"""Random programs whose loops load tiles ahead, multiply them and compute with them: what is wrong shows on a GPU only,
where many blocks run at once, and no more than now and then. They compute the same whatever the depth of the loop is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

HEAD = """
@T.prim_func
def main({parameters}):
    with T.Kernel({blocks}, threads={threads}) as bx:
{body}
"""


@dataclass
class _Writer:
    """The lines of a program: what it declares, what its loop does, and what it stores."""

    random: random.Random
    blocks: int
    turns: int
    step: int  # elements along the axis that products sum over, for each turn
    dtype: str
    parameters: list[str] = field(default_factory=list)
    declared: list[str] = field(default_factory=list)
    loop: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    loaded: dict[str, int] = field(default_factory=dict)  # rows of each tile that the loop loads

    def load(self, rows: int) -> None:
        """A tile of `rows` x `step`, of this block or of all."""
        name = f"a{len(self.loaded)}"
        own = self.random.random() < 0.6
        tensor_rows = rows * (self.blocks if own else 1)
        self.parameters.append(f'{name.upper()}: T.Tensor(({tensor_rows}, {self.turns * self.step}), "{self.dtype}")')
        self.declared.append(f'{name} = T.alloc_shared(({rows}, {self.step}), "{self.dtype}")')
        self.loop.append(f"T.copy({name.upper()}[{f'bx * {rows}' if own else 0}, k * {self.step}], {name})")
        self.loaded[name] = rows

    def result(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> None:
        """A fragment that begins with zeros and is an output."""
        sizes = ", ".join(map(str, shape))
        self.declared += [f'{name} = T.alloc_fragment(({sizes},), "{dtype}")', f"T.clear({name})"]
        rows, *columns = shape
        outer = ", ".join(map(str, (rows * self.blocks, *columns)))
        self.parameters.append(f'{name.upper()}: T.Tensor(({outer},), "{dtype}")')
        place = ", ".join((f"bx * {rows}", *("0" for _ in columns)))
        self.stored.append(f"T.copy({name}, {name.upper()}[{place}])")

    def computed(self, name: str, rows: int, text: str, dtype: str) -> None:
        """A tile that is computed element by element, as `text` says at [i, j]."""
        self.declared.append(f'{name} = T.alloc_fragment(({rows}, {self.step}), "{dtype}")')
        self.loop += [f"for i, j in T.Parallel({rows}, {self.step}):", f"    {name}[i, j] = {text}"]


def pipelined_program(seed: int, blocks: int = 512) -> str:
    """The text of a program named main, whose loop has `num_stages=STAGES`, and whose outputs are named R0, R1, ..."""
    drawn = random.Random(seed)
    writer = _Writer(
        drawn, blocks, drawn.choice([4, 6, 7]), drawn.choice([32, 64]), drawn.choice(["float16", "bfloat16"])
    )
    for _ in range(drawn.choice([2, 2, 3])):
        writer.load(drawn.choice([16, 64, 64, 128]))
    names = list(writer.loaded)
    steps = ["product", *drawn.choices(["product", "sums", "total", "scaled", "scores"], k=drawn.choice([1, 2, 2]))]
    drawn.shuffle(steps)
    for number, step in enumerate(steps):
        left, right = drawn.choice(names), drawn.choice(names)
        rows, others = writer.loaded[left], writer.loaded[right]
        if step == "product":
            writer.result(f"r{number}", (rows, others))
            writer.loop.append(f"T.gemm({left}, {right}, r{number}, transpose_B=True)")
        elif step == "sums":
            writer.result(f"r{number}", (rows,))
            writer.computed(f"t{number}", rows, f"{left}[i, j]", "float32")
            writer.loop.append(f"T.reduce_sum(t{number}, r{number}, dim=1, clear=False)")
        elif step == "total":
            writer.result(f"r{number}", (rows, writer.step))
            writer.loop += [
                f"for i, j in T.Parallel({rows}, {writer.step}):",
                f"    r{number}[i, j] += {left}[i, j] * {drawn.choice(['0.5', 'k', left + '[i, j]'])}",
            ]
        elif step == "scaled":
            writer.result(f"r{number}", (rows, others))
            writer.computed(f"t{number}", rows, f"{left}[i, j] * 0.5", writer.dtype)
            writer.loop.append(f"T.gemm(t{number}, {right}, r{number}, transpose_B=True)")
        else:  # products of products, as in attention
            writer.result(f"r{number}", (rows, writer.step))
            writer.declared += [
                f's{number} = T.alloc_fragment(({rows}, {others}), "float32")',
                f'p{number} = T.alloc_fragment(({rows}, {others}), "{writer.dtype}")',
            ]
            writer.loop += [
                f"T.gemm({left}, {right}, s{number}, transpose_B=True, clear_accum=True)",
                f"for i, j in T.Parallel({rows}, {others}):",
                f"    p{number}[i, j] = s{number}[i, j] * 0.125",
                f"T.gemm(p{number}, {right}, r{number})",
            ]
    loop = f"for k in T.Pipelined({writer.turns}, num_stages=STAGES):"
    body = [*writer.declared, loop, *(f"    {each}" for each in writer.loop), *writer.stored]
    return HEAD.format(
        parameters=", ".join(writer.parameters),
        blocks=blocks,
        threads=drawn.choice([128, 128, 256]),
        body="\n".join(f"        {each}" for each in body),
    )

"""The source of the host launcher: it reads shapes, allocates workspaces and outputs, and launches the kernels in
order."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.analysis.launched_parameters import needs_alignment, written_parameters
from tiledsl.codegen.expressions import ADD, AND, ATOM, BINARY, COMPARE, MULTIPLY, OR, PREDICATES, UNARY, Expression
from tiledsl.codegen.functions import TORCH_TYPES, literal
from tiledsl.codegen.host_descriptors import descriptor_text
from tiledsl.codegen.names import PythonNames, comment, quoted
from tiledsl.dialects import arith, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.errors import TileError
from tiledsl.formulas import names_in, text_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import ELEMENTS, BufferType


class HostWriter:
    """Writes the launcher of one program over Python numbers and torch tensors."""

    def __init__(self, func: tile.FuncOp, module_names: set[str]) -> None:
        self.func = func
        self.names = PythonNames(module_names)
        self.lines: list[str] = []
        self._text: dict[Value, Expression] = {}
        self.parameters = func.body.args[: len(func.parameters)]
        self.symbols = func.body.args[len(func.parameters) :]
        self._uses_truncating_division = self._uses_quotient = False
        for value, name in zip(self.parameters, func.parameters):
            self._text[value] = Expression(self.names.claim(str(name)))
        for value, name in zip(self.symbols, func.symbols):
            self._text[value] = Expression(self.names.claim(str(name)))

    # The two functions

    def write(self, entry: str, into: str) -> list[str]:
        """`into` takes all parameters; `entry`, if it is another function, makes the outputs and returns them."""
        all_names = [self._text[value].text for value in self.parameters]
        tensors = [value for value in self.parameters if isinstance(value.type, BufferType)]
        body: list[str] = []
        used = {value for value in self.symbols if value.uses}
        # What the launcher writes down the sizes of: workspaces, and what descriptors show.
        sized = [op.out for op in self.func.body if isinstance(op, (tile.AllocOp, triton.DescriptorOp))]
        used |= {self.func.symbol(dim) for value in sized for dim in _dims(value) if isinstance(dim, str)}
        for name, formula in self.func.formulas:
            if self.func.symbol(name) in used and self._source(name) == tile.COMPUTED:
                used |= {self.func.symbol(each) for each in names_in(formula) if each in self.func.symbols}
        for value in self.symbols:
            if value in used:
                body.append(f"{self._text[value].text} = {self._source_of(value)}")
        self.lines, self._device = [], f"{self._text[tensors[0]].text}.device" if tensors else '"cuda"'
        for op in self.func.body:
            self.statement(op)
        if all(line.startswith("#") for line in self.lines):  # nothing, or launches over empty grids
            self.lines.append("pass")
        if tensors:
            body.append(f"with torch.cuda.device_of({self._text[tensors[0]].text}):")
            body.extend("    " + line for line in self.lines)
        else:
            body.extend(self.lines)
        aligned = [self._text[value].text for value in needs_alignment(self.func) if value in self._text]
        if aligned:
            written = [self.parameters.index(value) for value in written_parameters(self.func)]
            places = [self.parameters.index(value) for value in needs_alignment(self.func) if value in self._text]
            addresses = " | ".join(f"{name}.data_ptr()" for name in aligned)
            body[:0] = [
                f"if ({addresses}) % 16:" if len(aligned) > 1 else f"if {addresses} % 16:",
                f"    return _with_aligned({into}, {self._tuple(all_names)}, {tuple(places)}, {tuple(written)})",
            ]
        what = "Runs the program on these tensors" + (", outputs included." if self.func.outputs else ".")
        lines = [f"def {into}({', '.join(all_names)}):", f'    """{what}"""', *("    " + line for line in body)]
        if entry != into:
            lines += ["", "", *self.allocating(entry, into, all_names)]
        if self._uses_quotient:
            lines = [
                "def _quotient(size, factor, what):",
                "    if size % factor:",
                '        raise ValueError(f"{what} is {size}, no multiple of {factor}")',
                "    return size // factor",
                "",
                "",
                *lines,
            ]
        if self._uses_truncating_division:
            lines = [
                "def _truncdiv(a, b):",
                "    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)",
                "",
                "",
                *lines,
            ]
        return lines

    def allocating(self, entry: str, into: str, all_names: Sequence[str]) -> list[str]:
        outputs = [self.parameters[position] for position in self.func.outputs]
        inputs = [value for value in self.parameters if value not in outputs]
        tensors = [value for value in inputs if isinstance(value.type, BufferType)]
        device = f"{self._text[tensors[0]].text}.device" if tensors else "device"
        shown = ", ".join(self._text[value].text for value in outputs)
        lines = [
            f"def {entry}({', '.join(self._text[value].text for value in inputs)}):",
            f'    """Runs the program and returns {shown}."""',
        ]
        if not tensors:
            lines.append('    device = "cuda" if torch.cuda.is_available() else "cpu"')
        needed = {dim for value in outputs for dim in _dims(value) if isinstance(dim, str)}
        formulas = {name: formula for name, formula in self.func.formulas if self._is_read_from(name, outputs)}
        needed |= {name for each in needed & formulas.keys() for name in names_in(formulas[each])}
        for value, name in zip(self.symbols, self.func.symbols):
            if name in needed and name not in formulas:
                lines.append(f"    {self._text[value].text} = {self._source_of(value, outputs)}")
        spelling = {str(name): self._text[value].text for value, name in zip(self._values(), self._names())}
        for name in sorted(needed & formulas.keys()):
            lines.append(f"    {spelling[name]} = {text_of(formulas[name], spelling)}")
        written = written_parameters(self.func)
        for value in outputs:
            made = self._made(value, device, "empty" if value in written else "zeros")
            lines.append(f"    {self._text[value].text} = {made}")
        lines.append(f"    {into}({', '.join(all_names)})")
        returned = shown if len(outputs) == 1 else f"[{shown}]" if self.func.returns_list else f"({shown})"
        lines.append(f"    return {returned}")
        return lines

    def _values(self) -> list[Value]:
        return [*self.parameters, *self.symbols]

    def _names(self) -> list[str]:
        return list(map(str, (*self.func.parameters, *self.func.symbols)))

    def _source(self, symbol: str) -> str:
        return str(self.func.symbol_sources[self.func.symbols.index(symbol)])

    def _is_read_from(self, symbol: str, outputs: Sequence[Value]) -> bool:
        source = self._source(symbol)
        return (
            source != tile.COMPUTED
            and self.parameters[self.func.parameters.index(source.rpartition(".")[0])] in outputs
        )

    def _source_of(self, symbol: Value, excluded: Sequence[Value] = ()) -> str:
        """Where a symbol is read: `A.shape[0]` for the source "A.0", `A.stride(0)` for "A.stride0".

        A dimension that is the symbol times 4 plus 1 is the source "A.0-1//4".
        """
        number = self.symbols.index(symbol)
        if number >= len(self.func.symbol_sources):
            raise TileError(f"nothing says where {self.func.symbols[number]} is read", self.func.loc)
        source = str(self.func.symbol_sources[number])
        if source == tile.COMPUTED:
            values = zip(self._names(), self._values())
            spelling = {name: self._text[value].text for name, value in values if value in self._text}
            return text_of(dict(self.func.formulas)[str(self.func.symbols[number])], spelling)
        parameter, _, axis = source.rpartition(".")
        if parameter in [self.func.parameters[self.parameters.index(value)] for value in excluded]:
            raise TileError(
                f"{self.func.symbols[number]} is known only from the output {parameter}, which cannot be allocated",
                self.func.loc,
                ["pass the output to the kernel, or give the size as a parameter"],
            )
        name = self._text[self.parameters[self.func.parameters.index(parameter)]].text
        axis, _, factor = axis.partition("//")
        axis, sign, constant = axis.replace("-", " - ").replace("+", " + ").partition(" ")
        place = f"{name}.stride({axis[6:]})" if axis.startswith("stride") else f"{name}.shape[{axis}]"
        place = f"{place}{sign}{constant}"
        if not factor:
            return place
        self._uses_quotient = True
        return f"_quotient({place}, {factor}, {quoted(place)})"

    def _made(self, value: Value, device: str, function: str = "empty") -> str:
        """torch.empty or torch.zeros for a buffer; with strides, torch.empty_strided."""
        type = tile.buffer_type(value)
        shape = self._tuple([self._dim(dim) for dim in type.shape])
        options = f"dtype={TORCH_TYPES[type.dtype]}, device={device}"
        if type.strides is not None:
            strides = self._tuple([self._dim(dim) for dim in type.strides])
            text = f"torch.empty_strided({shape}, {strides}, {options})"
            return text if function == "empty" else f"{text}.zero_()"
        return f"torch.{function}({shape}, {options})"

    def _dim(self, dim: int | str) -> str:
        return str(dim) if isinstance(dim, int) else self._text[self.func.symbol(dim)].text

    @staticmethod
    def _tuple(items: Sequence[str]) -> str:
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"

    # Statements

    def statement(self, op: Operation) -> None:
        if isinstance(op, arith.ConstantOp):
            text = literal(op.value, op.out.dtype)
            self._text[op.out] = Expression(text, UNARY if text.startswith("-") else ATOM)
        elif isinstance(op, tile.AllocOp):
            name = self._text[op.out] = Expression(self.names.claim(op.out.name or "workspace"))
            self.lines.append(f"{name.text} = {self._made(op.out, self._device)}")
        elif isinstance(op, tile.ViewOp):
            view = self._text[op.source].text
            if op.source.dtype != op.out.dtype:
                flat = "" if ELEMENTS[op.source.dtype].bits == ELEMENTS[op.out.dtype].bits else ".view(-1)"
                view += f"{flat}.view({TORCH_TYPES[op.out.dtype]})"
            self._text[op.out] = Expression(view)
        elif isinstance(op, triton.DescriptorOp):
            name = self._text[op.out] = Expression(self.names.claim(op.out.name))
            self.lines.append(f"{name.text} = {descriptor_text(op, self._text[op.buffer].text, self._dim)}")
        elif isinstance(op, triton.MultiprocessorsOp):
            self._text[op.out] = Expression(f"_multiprocessors({self._device})")
        elif isinstance(op, triton.LaunchOp):
            self.launch(op)
        elif op.name.startswith("arith.") and len(op.results) == 1:
            expression = self.operation(op)
            users = op.results[0].uses
            several = sum(users.values()) > 1 or any(isinstance(each, arith.TruncModOp) for each in users)  # twice
            simple = expression.precedence == ATOM and not expression.text.endswith(")")
            if several and not simple or len(expression.text) > 60:
                name = self._text[op.results[0]] = Expression(self.names.claim(op.results[0].name or "size"))
                self.lines.append(f"{name.text} = {expression.text}")
            else:
                self._text[op.results[0]] = expression
        else:
            raise TileError(f"{op.name} cannot run on the host", op.loc)

    def launch(self, op: triton.LaunchOp) -> None:
        grid = [self._text[value] for value in op.grid]
        sizes = [constant_of(value) for value in op.grid]
        if any(size is not None and size <= 0 for size in sizes):
            self.lines.append(f"# {comment(op.sym_name)} has an empty grid")
            return
        unknown = [each.at(OR) for each, size in zip(grid, sizes) if size is None]
        indent = ""
        if unknown:
            self.lines.append(f"if {' and '.join(f'{each} > 0' for each in unknown)}:")
            indent = "    "
        arguments = [self._text[value].text for value in op.arguments]
        options = [f"{name}={value}" for name, value in op.options if name not in triton.OURS]
        options.append("enable_fp_fusion=True")  # the default, but Triton 3.9 wants it said
        options += [f"{name}={value}" for name, value in debug_options(op).items()]
        head = f"{op.sym_name}[{self._tuple([each.text for each in grid])}]"
        text = f"{head}({', '.join(arguments + options)})"
        if len(text) <= 96:
            self.lines.append(indent + text)
        else:
            self.lines.append(f"{indent}{head}(")
            if arguments:
                self.lines.append(f"{indent}    {', '.join(arguments)},")
            self.lines += [f"{indent}    {', '.join(options)},", f"{indent})"]

    # Expressions over Python numbers

    def operation(self, op: Operation) -> Expression:
        values = [self._text[value] for value in op.operands]
        if isinstance(op, arith.CeilDivOp):
            return Expression(f"triton.cdiv({values[0].text}, {values[1].text})")
        if isinstance(op, arith.TruncDivOp):
            self._uses_truncating_division = True
            return Expression(f"_truncdiv({values[0].text}, {values[1].text})")
        if isinstance(op, arith.TruncModOp):
            self._uses_truncating_division = True
            a, b = (each.at(MULTIPLY + 1) for each in values)
            return Expression(f"{a} - {b} * _truncdiv({a}, {b})", ADD)
        if isinstance(op, (arith.MaxOp, arith.MinOp)):
            return Expression(f"{'max' if isinstance(op, arith.MaxOp) else 'min'}({values[0].text}, {values[1].text})")
        if isinstance(op, arith.SelectOp):
            return Expression(f"({values[1].text} if {values[0].text} else {values[2].text})")
        if isinstance(op, arith.CmpOp):
            return Expression(f"{values[0].at(OR)} {PREDICATES[op.predicate]} {values[1].at(OR)}", COMPARE)
        if isinstance(op, arith.NegOp):
            return Expression(f"-{values[0].at(UNARY)}", UNARY)
        if isinstance(op, arith.NotOp):
            return Expression(
                f"(not {values[0].at(AND)})" if op.out.dtype == "bool" else f"~{values[0].at(UNARY)}", UNARY
            )
        if isinstance(op, arith.CastOp):
            kind = "bool" if op.out.dtype == "bool" else "float" if op.out.dtype.startswith(("float", "bf")) else "int"
            same = kind == "int" and op.source.dtype.startswith(("int", "uint"))
            return values[0] if same else Expression(f"{kind}({values[0].text})")
        if type(op) in BINARY:
            symbol, precedence = BINARY[type(op)]
            return Expression(f"{values[0].at(precedence)} {symbol} {values[1].at(precedence + 1)}", precedence)
        raise TileError(f"{op.name} cannot run on the host", op.loc)


def debug_options(launch: triton.LaunchOp) -> dict[str, bool]:
    """What makes Triton keep a kernel's assertions, without checks of its own, as integers wrap."""
    asserts = any(isinstance(op, tile.AssertOp) for op in launch.walk())
    return {"debug": True, "sanitize_overflow": False} if asserts else {}


def _dims(value: Value) -> list[int | str]:
    type = tile.buffer_type(value)
    return [*type.shape, *(type.strides or ())]

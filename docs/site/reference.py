"""The reference: the language, the passes, the command line and the tuner's options, from their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator

import click

import tiledsl
from docs.site.entries import Entry, entries
from docs.site.markdown import code, docstring, escaped
from docs.site.repository import relative
from tiledsl import autotuner
from tiledsl.autotuner.option import by_section
from tiledsl.autotuner.options import TuneOptions
from tiledsl.cli import main
from tiledsl.commands.words import operation
from tiledsl.ir.core import OPERATIONS
from tiledsl.language import names
from tiledsl.language.dtypes import ALIASES, DTYPES
from tiledsl.language.refused import PATTERNS, REFUSED
from tiledsl.passes import PIPELINE

# The pages of the language, each with the modules whose names it has.
SUBJECTS = {
    "programs": ("Programs and kernels", "frontend.program language.program language.macros language.expression"),
    "memory": ("Tensors and memory", "language.buffer language.allocation"),
    "types": ("Element types", "language.dtypes"),
    "tiles": ("Operations on tiles", "language.operations language.reductions language.asynchronous"),
    "loops": ("Loops", "language.loops"),
    "maths": ("Arithmetic", "language.maths language language.cuda_functions"),
    "orders": ("Sorts, reducers and random numbers", "language.orders language.reducers language.random_numbers"),
    "atomics": ("Atomics", "language.atomics"),
    "threads": ("Code for one thread", "language.threads language.votes language.grid_barriers"),
    "roles": ("Roles of warps", "language.barriers"),
    "hints": ("Hints without effect", "language.hints"),
}
ABOUT_EXAMPLES = """
Each entry shows how a name is called, its shapes, types and errors, and an example that the tests run. The statements
of an example stand in `with T.Kernel(1, threads=32):`. A comment before them says what a tensor holds when the kernel
begins, in torch's terms, and a comment after them says what a tensor holds when it has run. An example with `assert` is
a program as it stands. `help(T.copy)` prints the same text.
"""


class Language:
    """The entries of `T`, each on the page of its subject."""

    def __init__(self) -> None:
        self.pages: dict[str, list[Entry]] = {page: [] for page in SUBJECTS}
        of_module = {module: page for page, (_, modules) in SUBJECTS.items() for module in modules.split()}
        modules = list(of_module)
        for entry in sorted(entries(), key=lambda entry: modules.index(entry.module)):
            self.pages[of_module[entry.module]].append(entry)
        self.places = {
            name: f"reference/{page}.md#{entry.names[0]}"
            for page, found in self.pages.items()
            for entry in found
            for name in entry.names
        }

    def texts(self) -> Iterator[tuple[str, str]]:
        yield "reference/language.md", self._index()
        for page, found in self.pages.items():
            parts = [
                f"---\nsearch:\n  boost: 4\n---\n\n# {SUBJECTS[page][0]}",
                *([_element_types()] if page == "types" else []),
                *(self._entry(f"reference/{page}.md", each) for each in found),
            ]
            yield f"reference/{page}.md", "\n\n".join(parts) + "\n"

    def _index(self) -> str:
        parts = ["# The names of the language", ABOUT_EXAMPLES.strip()]
        for page, (title, _) in SUBJECTS.items():
            shown = sorted((name, entry.names[0]) for entry in self.pages[page] for name in entry.names)
            links = " ".join(f"[`{name}`]({page}.md#{first})" for name, first in shown)
            parts += [f"## {title}", links]
        return "\n\n".join(parts) + "\n"

    def linked(self, page: str, text: str) -> str:
        """A docstring's text, in which each name of T that is elsewhere leads there."""

        def link(found: re.Match[str]) -> str:
            name = found[1].replace("\\_", "_")
            place = self.places.get(name)
            return f"[T.{found[1]}]({relative(page, place)})" if place else found[0]

        parts = re.split(r"(`[^`]*`)", escaped(text))
        return "".join(part if part.startswith("`") else re.sub(r"\bT\.((?:\w|\\_)+)", link, part) for part in parts)

    def _entry(self, page: str, entry: Entry) -> str:
        name, *others = entry.names
        parts = [f"## T.{escaped(name)} {{#{name}}}", code(_wrapped(entry.signature), "python")]
        if others:
            parts.append("Also " + ", ".join(f"`T.{each}`" for each in others) + ".")
        parts.append(docstring(entry.text, lambda text: self.linked(page, text)))
        if entry.example:
            parts += ["**Example**", code(entry.example.code, "python")]
        return "\n\n".join(parts)


def _element_types() -> str:
    """The element types as a table."""
    rows = []
    for name, dtype in DTYPES.items():
        if name in names.NAMES:
            others = " ".join(f"`{each}`" for each, usual in ALIASES.items() if usual == name)
            info = dtype.info
            low, high = (f"{each:.6g}" if info.kind == "float" else f"{int(each)}" for each in (info.low, info.high))
            rows.append(f"| `T.{name}` | {info.bits} | {low} to {high} | {others} |")
    about = "Wherever a type is taken, its name as a string, torch's and numpy's types stand for it, too."
    return f"{about}\n\n" + "\n".join(
        ["| type | bits | finite values | also called |", "| --- | --- | --- | --- |", *rows]
    )


def refused() -> str:
    """The page of the names of TileLang that are refused."""
    parts = [
        "# Names that are refused",
        "Using one is an error at its line, which says the same. `*` stands for any text, `[0-9]` for a digit.",
    ]
    reasons: dict[str, list[str]] = {}
    for name, reason in (REFUSED | PATTERNS).items():
        reasons.setdefault(reason, []).append(f"`T.{name}`")
    rows = [f"| {escaped(reason)} | {' '.join(sorted(found))} |" for reason, found in reasons.items()]
    return "\n\n".join([*parts, "\n".join(["| why | names |", "| --- | --- |", *rows])]) + "\n"


def _wrapped(signature: str) -> str:
    """A call over several lines, if it is long."""
    if len(signature) <= 88:
        return signature
    start, _, rest = signature.partition("(")
    parameters = re.split(r", (?=[\w*]+(?:=|,|\)|$|\*))", rest.removesuffix(")"))
    lines, line = [], "   "
    for each in parameters:
        if len(line) + len(each) > 84:
            lines.append(line)
            line = "   "
        line += f" {each},"
    return "\n".join([f"{start}(", *lines, line.removesuffix(","), ")"])


def passes() -> str:
    """The page of the passes, in the order of their first runs."""
    parts = [
        "# The passes",
        "In the order in which they run. [Looking inside](../passes.md) says how to see and change them.",
    ]
    for each in dict.fromkeys(PIPELINE):
        places = [str(number) for number, other in enumerate(PIPELINE, 1) if other is each]
        parts += [
            f"## {each.name}",
            f"Pass {' and '.join(places)} of {len(PIPELINE)}, `tiledsl.{each.__module__.removeprefix('tiledsl.')}`.",
            docstring(inspect.getdoc(each) or ""),
        ]
        if options := dataclasses.fields(each):
            rows = [f"| `{each.name}.{option.name}` | `{option.default!r}` |" for option in options]
            parts.append("\n".join(["| option | default |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def operations() -> str:
    """The page of the IR's operations, by dialect, for who writes a pass."""
    parts = [
        "# The operations of the IR",
        "What passes read and write. `SomeOp(operand, ..., attribute=value)` makes one; operands, attributes and "
        "results are read by their names, `op.lhs`. `tiledsl explain arith.mul` prints the same. "
        "[Passes of your own](../passes.md#passes-of-your-own) says how to use them.",
    ]
    for name in sorted(OPERATIONS):
        found = operation(OPERATIONS[name])
        rows = [
            f"| {what} | {', '.join(f'`{each}`' for each in found[what])} |"
            for what in ("operands", "results", "regions")
            if found[what]
        ]
        if found["attributes"]:
            shown = [
                f"`{key}`" + ("" if value is None else f" = `{value}`") for key, value in found["attributes"].items()
            ]
            rows.append(f"| attributes | {', '.join(shown)} |")
        parts += [f"## {name}", f"`{found['class']}`", docstring(found["text"])]
        parts += ["\n".join(["| | |", "| --- | --- |", *rows])] if rows else []
    return "\n\n".join(parts) + "\n"


def command_line() -> str:
    """The page of the command line, from the commands themselves."""
    parts = ["# The command line"]
    for path, command in _commands("tiledsl", main, None):
        context = click.Context(command, info_name=path)
        help_text = inspect.cleandoc(command.help or "").replace("\f", "")
        parts += [f"{'#' if path == 'tiledsl' else '##'}# {path}"]
        parts.append(code(command.get_usage(context).removeprefix("Usage: "), "console"))
        parts += [_help(each) for each in help_text.split("\n\n")]
        options = [each for each in command.params if isinstance(each, click.Option)]
        if options:
            rows = [f"| {_option(each)} | {escaped(each.help or '')} |" for each in options]
            parts.append("\n".join(["| option | |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _commands(path: str, command: click.Command, parent: click.Context | None) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path, parent=parent)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(f"{path} {name}", inner, context)


def _help(paragraph: str) -> str:
    """A paragraph of a command's help; click keeps the lines of one that begins with \\b."""
    if paragraph.startswith("\b"):
        return code(paragraph.removeprefix("\b\n"))
    return escaped(" ".join(paragraph.split()))


def _option(option: click.Option) -> str:
    names = [*option.opts, *option.secondary_opts]
    metavar = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    return f"`{', '.join(names)}{metavar}`".replace("|", "\\|")


def tuner() -> str:
    """The page of the tuner's options."""
    parts = ["# Options of the tuner", docstring(inspect.getdoc(tiledsl.autotune) or "")]
    for section, listed in by_section(TuneOptions).items():
        rows = [
            f"| `{each.name}` | `{each.default!r}` | {escaped(' '.join(each.metadata['doc'].split()))} |"
            for each in listed
        ]
        parts += [f"## {section}", "\n".join(["| option | default | |", "| --- | --- | --- |", *rows])]
    return "\n\n".join(parts) + "\n"


def python() -> str:
    """The page of what `import tiledsl` gives."""
    parts = ["# Python", "What `import tiledsl` and `tiledsl.autotuner` give, beside the [language](language.md)."]
    own = [("tiledsl", name) for name in sorted(tiledsl.__all__)]
    own += [("tiledsl.autotuner", name) for name in sorted({*autotuner.__all__} - {*tiledsl.__all__, "TuneOptions"})]
    for module, name in own:
        found = getattr(autotuner if module == "tiledsl.autotuner" else tiledsl, name)
        parts += [f"## {module}.{escaped(name)} {{#{name}}}"]
        if name != "autotune" and callable(found):
            parts.append(code(_wrapped(f"{module}.{name}{_short(found)}"), "python"))
        if name == "autotune":
            parts.append("Its options have [a page of their own](tuner.md).")
        parts.append(docstring(inspect.getdoc(found) or ""))
        methods = [
            (each, member)
            for each, member in (vars(found).items() if inspect.isclass(found) else ())
            if not each.startswith("_")
            and inspect.getdoc(member)
            and (callable(member) or isinstance(member, property))
        ]
        for each, member in methods:
            shown = f"`{name}.{each}{_short(member, True)}`"
            parts += [f"### {name}.{escaped(each)} {{#{name}.{each}}}", shown, docstring(inspect.getdoc(member) or "")]
    return "\n\n".join(parts) + "\n"


def _short(found: object, is_method: bool = False) -> str:
    """The signature without types."""
    try:
        signature = inspect.signature(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return str(inspect.Signature(parameters[1:] if is_method and parameters[:1] else parameters))

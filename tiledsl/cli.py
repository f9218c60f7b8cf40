"""The command `tiledsl`. A new one is a module of its own, added at the end; those here share options or load much.

Status 0: done. 1: a mistake in a program, a file or a value, or a check that fails. 2: a mistake in the options.
"""

from __future__ import annotations

import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from tiledsl.commands.cache import cache
from tiledsl.commands.completion import completion
from tiledsl.commands.report import give, gives, in_json, run_in_json, wants_json
from tiledsl.commands.tune import tune
from tiledsl.commands.tuned import tuned
from tiledsl.errors import PassFailure, TileError, on_command_line
from tiledsl.files import write_output, writing
from tiledsl.settings import current
from tiledsl.version import __version__


def _load(_: click.Context, __: click.Parameter, files: tuple[Path, ...]) -> None:
    """Import the files that --load names, before anything asks for what they define."""
    if files:
        from tiledsl.commands.lower import load_passes

        for file in files:
            load_passes(file)


_loads = click.option(
    "--load", multiple=True, type=click.Path(path_type=Path), metavar="FILE", callback=_load, expose_value=False,
    is_eager=True, help="A Python file with passes of your own; repeat for more.",
)  # fmt: skip
_value = click.option(
    "-D", "values", multiple=True, metavar="NAME=VALUE", help="A value of the builder; repeat for more."
)
_target = click.option(
    "--target", default=None, help="cuda:90, hip:gfx942, ...; by default the GPU here, else cuda:90."
)
_config = click.option(
    "--pass-config", "configs", multiple=True, metavar="PASS.OPTION=VALUE", help="An option of a pass."
)
_output = click.option("-o", "output", type=click.Path(path_type=Path), default=None, help="Write to this file.")


class _Commands(click.Group):
    """A TileError of any command is printed as it is, as is a pass's failure, and ends with status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with on_command_line():
                return super().invoke(ctx)
        except (TileError, PassFailure) as error:
            if current().full_tracebacks:
                traceback.print_exception(error)
            if in_json():
                raise
            click.echo(str(error), err=True)
        ctx.exit(1)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        as_json, name, fields = wants_json(self, given)
        if not as_json:
            return super().main(given, *rest, **options)
        run = partial(super().main, given, *rest, **{**options, "standalone_mode": False})
        sys.exit(run_in_json(run, name, fields))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="tiledsl")
def main() -> None:
    """Look into tile programs, run pipelines over their IR, run TileLang scripts, and check this machine."""


@gives("function", "target", "emit", "text", "files", "remarks")
@main.command()
@click.argument("program", metavar="FILE[:FUNCTION]")
@_value
@_target
@click.option("--emit", default="source", metavar="STAGE", help="One of the stages above.")
@click.option("--after", default="", metavar="PASS", help="Print the IR after this pass.")
@click.option("--generic", is_flag=True, help="Print IR in MLIR's generic form, which other tools read.")
@click.option("--resume-after", default="", metavar="PASS", help="FILE has IR as after this pass: go on there.")
@click.option("--print-changed", is_flag=True, help="Print the IR after each pass that changes it, to stderr.")
@_config
@click.option("-o", "output", type=click.Path(path_type=Path), default=None, help="Write to this file (all: folder).")
@click.option("--report", type=click.Path(path_type=Path), default=None, help="Write a page about the kernel instead.")
@_loads
def lower(
    program: str,
    values: tuple[str, ...],
    target: str | None,
    emit: str,
    after: str,
    generic: bool,
    resume_after: str,
    print_changed: bool,
    configs: tuple[str, ...],
    output: Path | None,
    report: Path | None,
) -> None:
    """Show what a program becomes. FILE is a Python file with a @T.prim_func or a @jit function, or a .tile program.

    \b
    tile    the program as elaborated     triton  the IR at the end of the pipeline
    source  Triton source                 ttir, ttgir, llir, ptx, sass, amdgcn  what Triton makes of it
    schedule  roles, rings, and what each turn of a loop issues on which unit, as a table
    dot     the operations and their uses, for Graphviz, at the stage that --after names
    all     every level of every kernel, and what running them needs, as files in the folder that -o names
    """
    from tiledsl.commands import lower as command

    if emit not in command.EMIT:
        raise TileError(f"--emit {emit}: it must be one of {', '.join(command.EMIT)}")
    if after and emit not in ("source", "dot"):
        raise TileError(f"--after {after} prints IR, --emit {emit} another stage; give one of them")
    if generic and (emit == "dot" or not after and emit not in command.IR_LEVELS):
        raise TileError(f"--generic prints IR, --emit {emit} another stage; give --emit tile, --emit triton or --after")
    request = command.requested(
        program, values, target, configs,
        emit=emit, after=after, print_changed=print_changed, resume_after=resume_after, generic=generic,
    )  # fmt: skip
    if report is not None:
        if after or print_changed or output is not None or emit != "source":
            raise TileError("--report writes a page that has all stages: give it alone")
        written = command.report(request, report)
        give(function=request.function or None, target=str(request.target), emit="report", files=[written])
        click.echo(written)
        return
    if emit == "all":
        if output is None:
            raise TileError("--emit all writes files; name their folder with -o")
        paths = command.save_levels(request, output)
        give(function=request.function or None, target=str(request.target), emit=emit, files=paths)
        for path in paths:
            click.echo(path)
        return
    text = command.lower(request)
    give(function=request.function or None, target=str(request.target), emit=after or emit, text=text)
    give(files=_written(output))
    _write(text, output)


@gives("certificate", "file")
@main.command()
@click.argument("program", metavar="FILE[:FUNCTION]")
@_value
@_target
@_config
@click.option("--seconds", default=5.0, help="For all questions of each kind to the solver.")
@_output
@_loads
def verify(
    program: str,
    values: tuple[str, ...],
    target: str | None,
    configs: tuple[str, ...],
    seconds: float,
    output: Path | None,
) -> None:
    """Prove and test what can be of a program's lowering; print what is proved, tested, unknown and failed.

    FILE is as for `tiledsl lower`. Nothing runs on a GPU. Status 1 if something failed, 0 else.
    """
    from tiledsl.commands import lower as command

    certificate = command.kernel_of(command.requested(program, values, target, configs)).verify(seconds)
    width = max(40, min(100, shutil.get_terminal_size((60, 24)).columns))
    give(certificate=certificate.data(), file=output)
    _write(certificate.to_json() if in_json() else certificate.text(width), output)
    sys.exit(0 if certificate.ok else 1)


@gives(
    "kernel",
    "target",
    "passes",
    "accesses",
    "launches",
    "milliseconds",
    "estimated_for",
    "resources",
    "remarks",
    "advice",
    "mistakes",
    "operation",
)
@main.command()
@click.argument("program", metavar="[FILE[:FUNCTION] | EXAMPLE | CODE | OPERATION]", default="")
@_value
@_target
@_config
@click.option("--compile/--no-compile", "compiles", default=True, help="Compile it for registers, spills, occupancy.")
@_loads
def explain(
    program: str, values: tuple[str, ...], target: str | None, configs: tuple[str, ...], compiles: bool
) -> None:
    """Say what was made of a program and why: passes, the form of each access, remarks, what limits it, what to try.

    FILE is as for `tiledsl lower`; in a checkout, EXAMPLE is a name in examples/, at its small sizes unless -D says
    others. Times are estimates of the tuner's model. Nothing runs on a GPU.

    CODE is that of an error, `whole-tile`; without it all are listed. OPERATION is one of the IR, `arith.mul`.
    """
    from tiledsl.commands import explain as explaining
    from tiledsl.commands import lower as command
    from tiledsl.commands import words

    if not program or (words.is_word(program) and not Path(program).exists()):
        click.echo(words.explained(program) if program else words.listed())
        return
    request = command.requested(program, values, target, configs)
    if not request.file.is_file():
        file, sizes = explaining.example_of(str(request.file), request.values)
        request = replace(request, file=file, values=sizes)
    click.echo(explaining.show(request, compiles))


@gives("emit", "text", "file", "resources")
@main.command("compile")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--target", default=None, help="cuda:90, hip:gfx942, ...; by default what its JSON file says.")
@click.option("--emit", default="resources", metavar="STAGE", help="One of the stages above.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of Triton's: num_warps=8.")
@_output
def compile_level(file: Path, target: str | None, emit: str, options: tuple[str, ...], output: Path | None) -> None:
    """Compile one level of a kernel: a FILE.ttir, .ttgir, .llir, .ptx, .cubin, .amdgcn or .hsaco. Needs no GPU.

    \b
    ttgir, llir, ptx, cubin, sass, amdgcn, hsaco   what Triton makes of it
    resources                                      registers, spills, shared memory, occupancy
    """
    from tiledsl.commands.compile import compile_file
    from tiledsl.commands.lower import parse_value

    made = compile_file(file, target, emit, dict(map(parse_value, options)))
    give(emit=emit, file=output, text=made if isinstance(made, str) else None)
    if isinstance(made, str):
        _write(made, output)
    elif output is None:
        raise TileError(f"a {emit} is binary; write it to a file with -o")
    else:
        _write_bytes(made, output)


@gives("text", "file", "milliseconds")
@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-p", "--passes", "spec", required=True, metavar="SPEC", help="a,b{option=value},c")
@click.option("--target", default=None, help="The target that passes may ask for.")
@click.option("--verify/--no-verify", default=True, help="Verify the IR after every pass.")
@click.option("--generic", is_flag=True, help="Print MLIR's generic form, which other tools read.")
@click.option("--timing", is_flag=True, help="Print each pass's time to stderr.")
@_output
@_loads
def opt(file: Path, spec: str, target: str | None, verify: bool, generic: bool, timing: bool, output: Path | None) -> None:  # fmt: skip # noqa: E501
    """Run a pipeline over the IR in FILE ("-": stdin), in our form or MLIR's generic one, and print the result."""
    from tiledsl.commands.opt import opt as run_passes
    from tiledsl.runtime.target import Target

    chosen = None if target is None else Target.parse(target)
    text = run_passes(file, spec, chosen, verify=verify, generic=generic, timing=timing)
    give(text=text, file=output)
    _write(text, output)


@gives("passes")
@main.command()
@click.argument("name", metavar="[PASS]", required=False)
@_loads
def passes(name: str | None) -> None:
    """List the compiler's passes with their options, or show one with an example of what it does."""
    from tiledsl.commands.passes import passes as show

    show(name)


@gives("script")
@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(script: Path, arguments: tuple[str, ...]) -> None:
    """Run a script written for TileLang, unchanged: `import tilelang` finds tiledsl. Without a GPU its "cuda" tensors
    lie on the CPU, and kernels run in Triton's interpreter."""
    from tiledsl.commands.run import run_script

    give(script=script)
    with on_command_line(False):  # what is wrong in a script is to be changed there
        status = run_script(script, arguments)
    sys.exit(status)


@gives("scripts", "summary", "file")
@main.command()
@click.argument("where", type=click.Path(path_type=Path), metavar="SCRIPT|FOLDER")
@click.argument("arguments", nargs=-1)
@click.option("--only", default="", metavar="PATTERN", help="Scripts whose path matches this pattern.")
@click.option("--workers", default=2, metavar="N", help="Processes at a time, two for a script; one pair measures.")
@click.option("--timeout", default=300.0, help="Seconds for a script under one compiler.")
@click.option("--seconds", type=float, default=None, help="After so many, leave what is not done.")
@click.option("--verify", is_flag=True, help="Give each kernel a certificate, as `tiledsl verify` does.")
@click.option("-o", "output", type=click.Path(path_type=Path), default=None, help="Keep results here, and go on there.")
def beside(
    where: Path,
    arguments: tuple[str, ...],
    only: str,
    workers: int,
    timeout: float,
    seconds: float | None,
    verify: bool,
    output: Path | None,
) -> None:
    """Run TileLang scripts under tiledsl and under the TileLang that is installed, kernel by kernel: same inputs,
    outputs compared, times in turns, compile times, and what the remarks say of kernels that are slower.

    Arguments of a script follow "--". Nothing is tuned: the first configuration is taken. Status 1 if outputs differ
    or a certificate has failed; a script that fails is a row.
    """
    from tiledsl.commands import beside as command

    sys.exit(command.beside(where, arguments, only, command.Plan(workers, timeout, verify=verify), output, seconds))


@gives("findings")
@main.command()
def doctor() -> None:
    """Say what is installed, what works on this machine, and what does not. Status 1 if something needed is broken."""
    from tiledsl.commands.doctor import doctor as examine

    sys.exit(examine())


main.add_command(cache)
main.add_command(completion)
main.add_command(tune)
main.add_command(tuned)


def _commands(command: click.Command) -> Iterator[click.Command]:
    """The commands of a group, those of its groups included."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from _commands(each)
    else:
        yield command


for _command in _commands(main):
    _command.params.append(
        click.Option(["--json"], is_flag=True, expose_value=False, help="Print one JSON object; see docs/cli.md.")
    )


def _written(output: Path | None) -> list[Path] | None:
    return None if output is None else [output]


def _write(text: str, output: Path | None) -> None:
    """Print a text, or write it to a file."""
    text = text if text.endswith("\n") else text + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    _write_bytes(text.encode(), output)


def _write_bytes(data: bytes, output: Path) -> None:
    with writing(output):
        write_output(output, data)


if __name__ == "__main__":
    main()

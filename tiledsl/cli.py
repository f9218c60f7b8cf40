"""The command `tiledsl`: lower, opt, run, doctor."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tiledsl import __version__
from tiledsl.errors import TileError


class _Commands(click.Group):
    """A TileError of any command is printed as it is and ends with status 1."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except TileError as error:
            click.echo(str(error), err=True)
            ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="tiledsl")
def main() -> None:
    """Look into tile programs, run pipelines over their IR, run TileLang scripts, and check this machine."""


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(script: Path, arguments: tuple[str, ...]) -> None:
    """Run a script written for TileLang, unchanged: `import tilelang` finds tiledsl. Without a GPU its "cuda" tensors lie
    on the CPU, and kernels run in Triton's interpreter."""
    from tiledsl.commands.run import run_script

    sys.exit(run_script(script, arguments))

"""`tiledsl completion`: what a shell loads to complete commands, options and files."""

from __future__ import annotations

import click

from tiledsl.commands.report import give, gives

_VARIABLE = "_TILEDSL_COMPLETE"  # by which click is asked for completions


@gives("shell", "text")
@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what SHELL loads to complete commands, options and files of tiledsl.

    \b
    bash   eval "$(tiledsl completion bash)"       in ~/.bashrc
    zsh    eval "$(tiledsl completion zsh)"        in ~/.zshrc
    fish   tiledsl completion fish | source        in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None, shell
    complete = made(context.find_root().command, {}, "tiledsl", _VARIABLE)
    text = complete.source_template % complete.source_vars()
    give(shell=shell, text=text)
    click.echo(text)

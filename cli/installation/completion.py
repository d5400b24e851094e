"""`cometmq completion`: scripts by which shells complete commands and options.

A script calls `cometmq` with the variable below at each completion (click's protocol).
"""

import click
from click.shell_completion import get_completion_class

_PROGRAM, _VARIABLE = "cometmq", "_COMETMQ_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    eval "$(cometmq completion bash)"                                  # in ~/.bashrc; zsh likewise
    cometmq completion fish > ~/.config/fish/completions/cometmq.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    command = click.get_current_context().find_root().command
    click.echo(kind(command, {}, _PROGRAM, _VARIABLE).source())

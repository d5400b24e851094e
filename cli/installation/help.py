"""`cometmq help`: the help of a command, named without `--help`."""

import click


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def show_help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of COMMAND, or of all.

    \b
    cometmq help topic create
    """
    context = ctx.find_root()
    command = context.command
    for word in words:
        if not isinstance(command, click.Group):
            raise click.UsageError(f"{context.command_path} has no commands.")
        name, found, _ = command.resolve_command(context, [word])
        assert found is not None  # otherwise it raises
        context = click.Context(found, info_name=name, parent=context)
        command = found
    click.echo(command.get_help(context))

"""`cometmq cheat`: the commands that people need most, by task."""

import click

#: Task -> its commands; at most 80 columns with the indentation.
TASKS: dict[str, tuple[str, ...]] = {
    "Start a cluster on this machine, and look at it": (
        "cometmq up",
        "cometmq top",
        "cometmq ha status",
    ),
    "Send and read": (
        "cometmq topic create orders",
        'cometmq message send orders "hello" --key o-1',
        'cometmq message send orders "order {{n}}" --key "o-{{n}}" --count 100',
        "cat events.txt | cometmq message send orders --lines",
        "cometmq message tail orders --from beginning",
        "cometmq consume billing orders",
    ),
    "Find a message": (
        "cometmq message query --topic orders --key o-1",
        "cometmq message story ID --topic orders",
    ),
    "A group lags, or must read again": (
        "cometmq group list",
        "cometmq group describe billing",
        "cometmq offset reset billing orders -1h --dry-run",
    ),
    "Messages that failed, or wait": (
        "cometmq dlq ls billing",
        "cometmq dlq redrive billing --dry-run",
        "cometmq timer ls",
    ),
    "Rights and settings": (
        "cometmq user create app",
        "cometmq acl create --user app --resource Topic:orders --actions Pub",
        "cometmq config show --changed",
    ),
    "Keep data, and check an installation": (
        "cometmq backup create DIR",
        "cometmq doctor",
    ),
}


@click.command()
def cheat() -> None:
    """Print the commands that people need most, by task.

    \b
    cometmq cheat
    """
    for task, commands in TASKS.items():
        click.echo(click.style(task, bold=True))
        for command in commands:
            click.echo(f"  {command}")
        click.echo()
    click.echo("Options of each: cometmq help COMMAND. Another cluster: --endpoint HOST:PORT,")
    click.echo("or name it once: cometmq context add.")

"""The click group `cometmq`, and the conversion of failures to exit codes."""

import os
import sys
from collections.abc import Iterator
from typing import Any, cast

import click
from click.exceptions import NoSuchCommand

from ..operations.errors import CliError, Exit
from .help_texts import commands_of
from .lazy_group import LazyGroup
from .main import ALIASES, COMMANDS

#: A command has one of them.
_ADDRESS_OPTIONS = ("--endpoint", "--namesrv")
#: The ends of answers to values that a broker does not accept.
_BAD_VALUES = ("(BAD_REQUEST)", "(ILLEGAL_TOPIC)", "(ILLEGAL_CONSUMER_GROUP)")
#: The ends of answers about what does not exist, and where to look.
_LISTS = {
    "(TOPIC_NOT_FOUND)": "`cometmq topic list` shows those that exist.",
    "does not exist (NOT_FOUND)": "`cometmq user list` shows the users.",
    "has no quota (NOT_FOUND)": "`cometmq quota list` shows the quotas.",
}


def _version(ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        from .. import __version__

        click.echo(f"cometmq {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    aliases=ALIASES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    callback=_version,
    expose_value=False,
    is_eager=True,
    help="Show the version and exit.",
)
def cli() -> None:
    """A replicated message broker for every official RocketMQ 5 client."""


def run() -> int:
    """Run the command line; return its exit code."""
    # Lines that gRPC's own code logs; failures of calls are sentences of ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        _check_repeated()
        result = cli.main(prog_name="cometmq", standalone_mode=False)
        return result if isinstance(result, int) else Exit.DONE
    except CliError as error:
        _print_error(f"{error}{_next_step(error)}")
        return error.code
    except click.ClickException as error:
        (_of_another_address(error) or _of_a_noun(error) or error).show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader of stdout has exited (`| head`): suppress the message at interpreter exit, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except OSError as error:
        if os.environ.get("COMETMQ_TRACEBACK"):
            raise
        place = f"{error.filename}: " if error.filename else ""
        _print_error(f"{place}{error.strerror or error}.")
        return Exit.FAILED
    except Exception as error:
        if os.environ.get("COMETMQ_TRACEBACK"):
            raise
        _print_error(f"{type(error).__name__}: {error}. Set COMETMQ_TRACEBACK=1 for a traceback.")
        return Exit.FAILED


def _next_step(error: CliError) -> str:
    """Return where to read how the running command is used, if its error does not say more."""
    text = str(error)
    for end, sentence in _LISTS.items():
        if text.endswith(end):
            return f". {sentence}"
    is_mistake = (
        error.code in (Exit.USAGE, Exit.NOT_FOUND)
        or text.endswith(_BAD_VALUES)
        or text.startswith("BAD_REQUEST")
    )
    if not is_mistake or "cometmq " in text or "Did you mean" in text:
        return ""
    end = "" if text.endswith((".", "?")) else "."
    return f"{end} See `{' '.join(['cometmq', *_called()])} --help`."


def _called() -> list[str]:
    """Return the words that name the running command."""
    return [word for word, _, _ in _parsed()][1:]


def _check_repeated() -> None:
    """Refuse two values for an option that has one: click takes the last."""
    for _, command, values in _parsed():
        for option in filter(_has_one_value, command.params):
            if len(set(values.get(option.name or "") or ())) > 1:
                raise CliError(f"{option.opts[-1]} is given twice: it has one value.", Exit.USAGE)


def _parsed() -> Iterator[tuple[str, click.Command, dict[str, Any]]]:
    """Yield the word of each command of the command line, and its options as click parses them,
    with every value that is given. It ends at what click refuses."""
    word, command, given = "cometmq", cast("click.Command", cli), sys.argv[1:]
    context = click.Context(command)
    while True:
        single = [option for option in command.params if _has_one_value(option)]
        for option in single:
            option.multiple = True
        try:
            values, given, _ = command.make_parser(context).parse_args([*given])
        except click.UsageError:
            values, given = {}, []
        finally:
            for option in single:
                option.multiple = False
        yield word, command, values
        if not isinstance(command, click.Group) or not given:
            return
        word, *given = given
        found = command.get_command(context, word)
        if found is None:
            return
        command, context = found, click.Context(found, parent=context)


def _has_one_value(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and not (
        option.multiple or option.is_flag or option.count
    )


def _of_another_address(error: click.ClickException) -> click.ClickException | None:
    """Return an error that names the address option of the command, if the unknown option is the
    address option of other commands; None for other errors."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return None
    known = {name for each in error.ctx.command.params for name in each.opts}
    found = [name for name in _ADDRESS_OPTIONS if name in known]
    if error.option_name not in _ADDRESS_OPTIONS or not found:
        return None
    text = f"{error.message} Did you mean '{found[0]}'?"
    return click.NoSuchOption(error.option_name, text, ctx=error.ctx)


def _of_a_noun(error: click.ClickException) -> click.ClickException | None:
    """Return an error that names the commands of an unknown one, if nouns have it: `message send`
    of `send`; and one with the command of an option without a value."""
    if not isinstance(error, click.UsageError):
        return None
    if error.ctx is None:
        words = " ".join(["cometmq", *_called()])
        return click.UsageError(f"{error.message} See `{words} --help`.")
    found = commands_of(error.command_name) if isinstance(error, NoSuchCommand) else []
    if not found or error.ctx.parent is not None:
        return None
    named = " or ".join(f"`cometmq {command}`" for command in found)
    return click.UsageError(
        f"No such command '{found[0].split()[1]}'. Did you mean {named}?", error.ctx
    )


def _print_error(sentence: str) -> None:
    click.echo(f"cometmq: {sentence}", err=True)

"""The `cometmq` command: its table of subcommands, and the one place where failures become exit codes.

A subcommand's module is imported when it is called and not before: `cometmq up` has to have its
children running before anything heavy is loaded. Help needs no import either, so every row of the
table has its line of help here.
"""

import os
import sys
from typing import Any

import click

from .errors import CliError, Exit
from .lazy_group import LazyGroup, Table

#: Name -> (module of this package, command in it, one line of help).
COMMANDS: Table = {
    "up": ("cluster.up", "up", "Start a cluster on this machine: nameserver, master and slave."),
    "namesrv": ("serve", "namesrv", "Run a nameserver."),
    "broker": ("serve", "broker", "Run one replica of a broker group."),
    "single": ("serve", "single", "Run a nameserver and a broker in one process."),
    "proxy": ("proxy", "proxy", "Run a proxy: one port in front of every broker of a cluster."),
    "topic": ("topic", "topic", "Create, alter, delete, list and describe topics."),
    "group": ("group", "group", "Create, alter, delete, list and describe consumer groups."),
    "offset": ("offset", "offset", "Show and reset the consumer offsets of a group."),
    "message": ("message.command", "message", "Send messages, watch them arrive, find them again."),
    "cluster": ("cluster.command", "cluster", "Describe the members of a broker group."),
    "ha": ("ha.command", "ha", "Who leads a group: hand over, fail over, replay, reseed, compare."),
    "healthcheck": ("cluster.healthcheck", "healthcheck", "Ask a node whether it serves."),
    "doctor": ("doctor", "doctor", "Say what this machine gives a node, and which door serves."),
    "store": (
        "store.command",
        "store",
        "Look into a store directory, check it, repair it (offline).",
    ),
    "pipeline": (
        "pipeline.command",
        "pipeline",
        "Spark jobs: archive, replay, verify, rebuild, insights.",
    ),
    "config": ("config.show", "config", "Show settings and where they come from."),
}

#: Names of RocketMQ's own tool, which work and are not listed.
ALIASES: Table = {
    "updateTopic": ("mqadmin", "update_topic", ""),
    "updateTopicPerm": ("mqadmin", "update_topic_perm", ""),
    "deleteTopic": ("mqadmin", "delete_topic", ""),
    "topicList": ("mqadmin", "topic_list", ""),
    "topicStatus": ("mqadmin", "topic_status", ""),
    "updateSubGroup": ("mqadmin", "update_sub_group", ""),
    "deleteSubGroup": ("mqadmin", "delete_sub_group", ""),
    "getConsumerConfig": ("mqadmin", "get_consumer_config", ""),
    "consumerProgress": ("mqadmin", "consumer_progress", ""),
    "resetOffsetByTime": ("mqadmin", "reset_offset_by_time", ""),
    "skipAccumulatedMessage": ("mqadmin", "skip_accumulated_message", ""),
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
    "--version", is_flag=True, callback=_version, expose_value=False, is_eager=True, help="Version."
)
def cli() -> None:
    """A replicated message broker for every official RocketMQ 5 client."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(_run())


def _run() -> int:
    try:
        result = cli.main(prog_name="cometmq", standalone_mode=False)
        return result if isinstance(result, int) else Exit.DONE
    except CliError as error:
        _complain(str(error))
        return error.code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except OSError as error:
        if os.environ.get("COMETMQ_TRACEBACK"):
            raise
        place = f"{error.filename}: " if error.filename else ""
        _complain(f"{place}{error.strerror or error}.")
        return Exit.FAILED
    except Exception as error:
        if os.environ.get("COMETMQ_TRACEBACK"):
            raise
        _complain(f"{type(error).__name__}: {error}. COMETMQ_TRACEBACK=1 shows where it happened.")
        return Exit.FAILED


def _complain(sentence: str) -> None:
    click.echo(f"cometmq: {sentence}", err=True)


if __name__ == "__main__":
    main()

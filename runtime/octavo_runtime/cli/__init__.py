"""The command line: `octavo serve`, `plan`, `replay`, `convert`, `version`. Commands import what they need when they run."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

import click

from octavo_runtime.cli.failure import report, termination_log
from octavo_runtime.errors import BadFlags, InternalError, StartError

__all__ = ["main", "run"]

_COMMANDS = ("serve", "plan", "replay", "convert")


class _Commands(click.Group):
    """Finds each command in the module of its name, when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            command = getattr(import_module(f"octavo_runtime.cli.{cmd_name}"), cmd_name)
            assert isinstance(command, click.Command)
            return command
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("octavo"), prog_name="octavo")
def octavo() -> None:
    """Serve large language models.

    A first run:

    \b
      octavo convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2
      octavo serve smollm2
      curl localhost:8000/v1/chat/completions \\
        -H 'Content-Type: application/json' \\
        -d '{"messages": [{"role": "user", "content": "Who are you?"}]}'
    """  # noqa: D301 - click wants a backspace, not its letters


@octavo.command("version")
def show_version() -> None:
    """Print the version."""
    click.echo(version("octavo"))


def run(argv: Sequence[str], *, engine_command: Sequence[str] | None = None) -> int:
    """Runs one command line; returns the exit code, with the cause of a failure on stderr and in the termination log.

    Args:
        argv: Without the program's name.
        engine_command: The engine's program, where a test brings its own.
    """
    try:
        octavo.main(list(argv), prog_name="octavo", standalone_mode=False, obj=engine_command)
    except click.exceptions.Exit as end:  # --help, --version
        return end.exit_code
    except click.Abort:  # Ctrl-C
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return BadFlags.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "octavo"
        failure: StartError = BadFlags(error.format_message(), hint=f"`{path} --help` lists what there is.")
    except StartError as error:
        failure = error
    except Exception as error:
        logging.getLogger(__name__).exception("octavo failed")
        failure = InternalError(f"{type(error).__name__}: {error}", hint="This is a fault of Octavo; please report it.")
    else:
        return 0
    report(failure, termination_log(argv))
    return failure.exit_code


def main() -> int:
    """The program `octavo`."""
    # As process 1 of a container it would not hear SIGTERM without a handler, and wait for SIGKILL. Until a server has
    # begun to listen there is nothing to drain: it has stopped as asked.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0 if sys.argv[1:2] == ["serve"] else 128 + signal.SIGTERM))
    return run(sys.argv[1:])

"""`procsv`: find the command and run it.

The commands' modules load only when they are called, so that `procsv --help` answers at once. A
UserError of any command becomes one message on stderr and an exit code.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from pathlib import Path

import click

from procsv import __version__
from procsv.base import exit_codes
from procsv.base.errors import UserError
from procsv.base.run.records import whose
from procsv.base.system.system_clock import SystemClock
from procsv.base.terminal import printable
from procsv.cli.invocation import Invocation, variable

COMMANDS = {  # name -> (module, summary), in the order of the help
    "launch": ("procsv.cli.launch", "Run a program, and restart it when it crashes or hangs."),
    "status": ("procsv.cli.status", "Show the state of a run."),
    "top": ("procsv.cli.top.command", "Watch a run on one screen: processes, steps, loss, events."),
    "ls": ("procsv.cli.ls", "List the runs here, with the state of each."),
    "stop": ("procsv.cli.stop", "Save the state of a run and end it."),
    "restart": ("procsv.cli.restart", "Save the state of a run and restart its program."),
    "checkpoints": ("procsv.cli.checkpoints", "List checkpoints, and check that they are whole."),
    "report": ("procsv.cli.report", "Account for every second of a run."),
    "preempt": ("procsv.cli.preempt", "Preempt a run as a cloud or a scheduler does."),
    "drill": ("procsv.cli.drill", "Prove that a program survives: train it with and without faults."),
    "logs": ("procsv.cli.logs.command", "Show what the processes of a run have printed."),
    "completion": ("procsv.cli.usage.completion", "Complete commands and options in bash, zsh or fish."),
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = module.command
        for param in command.params:
            if name := variable(cmd_name, param):
                others = [param.envvar] if isinstance(param.envvar, str) else list(param.envvar or ())
                param.envvar = [name, *(other for other in others if other != name)]  # --secret-file has a second one
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" There are: {', '.join(COMMANDS)}."
            raise click.UsageError(f"There is no command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", prog_name="procsv")
def procsv() -> None:
    """Run TensorFlow training programs for days with nobody watching."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line; this is the entry point, and it does not return."""
    _have_standard_streams()
    invocation = Invocation(SystemClock().wall())
    try:
        procsv.main(args=argv, prog_name="procsv", obj=invocation)
    except SystemExit:
        if invocation.after is None:
            raise
    except UserError as error:
        click.echo(f"procsv: {printable(str(error))}", err=True)
        sys.exit(error.exit_code)
    except PermissionError as error:  # usually the run is another user's
        if error.filename is None:
            raise
        click.echo(
            f"procsv: {printable(str(error.filename))}: permission denied{whose(Path(error.filename))}", err=True
        )
        sys.exit(exit_codes.USAGE)
    if invocation.after is not None:
        sys.exit(invocation.after())


def _have_standard_streams() -> None:
    """Open /dev/null for each standard stream that is closed.

    A shell (`procsv … >&-`) or a scheduler may start procsv with closed streams. Then the next file
    that procsv opens would get the descriptor number of a standard stream.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number, which is `fd`
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115  it stays open


if __name__ == "__main__":
    main()

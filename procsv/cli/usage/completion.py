"""`procsv completion SHELL`: print the script for completion in a shell.

Called by main.py. The script completes commands, options, runs, roles and modules. For each word,
the shell starts procsv, and click calls the functions here.
"""

from __future__ import annotations

import pkgutil
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

import procsv
from procsv.base.errors import UserError

EXAMPLES = Path(procsv.__file__).parent / "examples"
VARIABLE = "_PROCSV_COMPLETE"  # the shell sets it to ask for completions
WHERE = {
    "bash": 'eval "$(procsv completion bash)"      # in ~/.bashrc',
    "zsh": 'eval "$(procsv completion zsh)"       # in ~/.zshrc',
    "fish": "procsv completion fish | source       # in ~/.config/fish/config.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(WHERE.values()))
@click.argument("shell", type=click.Choice(tuple(WHERE)))
def command(shell: str) -> None:
    """Print the script that completes procsv's commands, options, runs, roles and modules in SHELL."""
    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    script = found(click.Group("procsv"), {}, "procsv", VARIABLE)
    click.echo(ShellComplete.source(script))  # click's subclass for bash would start a bash to find its version


def complete_roles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the roles that have a log in the chosen run."""
    from procsv.cli.directory import find_run, list_runs
    from procsv.cli.logs.role_logs import list_roles

    directory = ctx.params.get("directory")
    try:
        runs = [find_run(directory)] if directory else [one.run for one in list_runs(Path())[:1]]
    except (UserError, OSError):
        return []
    return [CompletionItem(role) for run in runs for role in list_roles(run) if role.startswith(incomplete)]


def complete_targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a target: modules and files in the current directory, and procsv's examples."""
    if "/" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    package, dot, _ = incomplete.rpartition(".")
    modules = [package + dot + one.name for one in pkgutil.iter_modules([str(Path(*package.split(".")))])]
    examples = pkgutil.iter_modules([str(EXAMPLES)], "procsv.examples.") if incomplete else ()
    files = [path.name for path in Path().glob("*.py")]
    names = dict.fromkeys(
        name for name in (*files, *modules, *(one.name for one in examples)) if name.startswith(incomplete)
    )
    return [CompletionItem(name) for name in names]

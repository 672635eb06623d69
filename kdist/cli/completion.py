"""`kdist completion`: the lines that make a shell complete kdist's commands and names."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands, options, and names of topics and groups.

    Names come from the cluster in KDIST_BROKER, and are left out if it does not answer at once.

    \b
    Examples:
      eval "$(kdist completion bash)"                              in ~/.bashrc
      eval "$(kdist completion zsh)"                               in ~/.zshrc
      kdist completion fish > ~/.config/fish/completions/kdist.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    program = ctx.find_root().command
    click.echo(found(program, {}, "kdist", "_KDIST_COMPLETE").source())

"""`kdist completion`: prints the completion script for a shell."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which a shell completes commands, options, topics and groups.

    Topics and groups come from the cluster in KDIST_BROKER, if it answers within a second.

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

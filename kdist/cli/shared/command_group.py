"""The click group that kdist's commands use: full help sentences, options before the subcommand.

click truncates the sentences at 45 characters, and passes options that stand before a subcommand to
the group alone: in `kdist gate --json holder` it would silently drop `--json`.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.core import ParameterSource


class CommandGroup(click.Group):
    """Passes options before a subcommand's name on to the subcommand, which may refuse them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but with the group's options moved behind the name."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, [*_given(ctx), *rest]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Every command with the first sentence of its help."""
        sentences = [
            (name, self.commands[name].get_short_help_str(1_000)) for name in self.commands
        ]
        with formatter.section("Commands"):
            formatter.write_dl(sorted(sentences))


def _given(ctx: click.Context) -> Iterator[str]:
    """The options that click has parsed from the command line, as arguments again."""
    for option in ctx.command.params:
        assert option.name is not None
        if ctx.get_parameter_source(option.name) is not ParameterSource.COMMANDLINE:
            continue
        value, flag = ctx.params[option.name], option.opts[0]
        if value is True:
            yield flag
        else:
            for each in value if option.multiple else (value,):
                yield from (flag, str(each))

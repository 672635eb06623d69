"""A group of commands as kdist's are: listed with whole sentences, and with options before a name.

click cuts the sentences at 45 characters, and gives a group's options to the group alone: in
`kdist gate --json holder` it would drop `--json` without a word.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.core import ParameterSource


class CommandGroup(click.Group):
    """What is given before a command's name is given to the command, which may refuse it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with the group's options put behind the name."""
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
    """The options of a command line that click has read, as words again."""
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

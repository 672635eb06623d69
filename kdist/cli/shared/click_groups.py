"""The click groups of kdist's commands: full help sentences, and imports only of what runs.

click truncates the sentences at 45 characters, and passes options that stand before a subcommand to
the group alone: in `kdist gate --json holder` it would silently drop `--json`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """Imports a command only when it runs.

    `commands_by_name`: name to (`module:attribute`, the sentence for the group's help).
    """

    def __init__(
        self,
        *arguments: Any,
        commands_by_name: Mapping[str, tuple[str, str]],
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._commands_by_name = commands_by_name

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._commands_by_name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._commands_by_name:
            return None
        module, _, attribute = self._commands_by_name[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name gets the nearest one of the table suggested."""
        name = args[0]
        if name not in self._commands_by_name and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, self._commands_by_name, n=1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As click does, without importing the commands for their short help."""
        own = [
            CompletionItem(name, help=sentence)
            for name, (_, sentence) in self._commands_by_name.items()
            if name.startswith(incomplete)
        ]
        return own + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, sentence) for name, (_, sentence) in self._commands_by_name.items()]
            )


class CommandGroup(click.Group):
    """Passes options before a subcommand's name on to the subcommand, which may refuse them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, but `--list`, as Kafka's tools have it, gets the command suggested."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.removeprefix("--")
            if name not in self.commands:
                raise
        raise click.NoSuchOption(f"--{name}", possibilities=[name], ctx=ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but with the group's options moved behind the name."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, [*_parsed_options(ctx), *rest]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Every command with the first sentence of its help."""
        sentences = [
            (name, self.commands[name].get_short_help_str(1_000)) for name in self.commands
        ]
        with formatter.section("Commands"):
            formatter.write_dl(sorted(sentences))


def _parsed_options(ctx: click.Context) -> Iterator[str]:
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

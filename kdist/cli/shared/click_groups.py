"""A click group whose commands are imported only when they run; a table has their short help."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """`commands_by_name`: name to (`module:attribute`, the sentence for the group's help)."""

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

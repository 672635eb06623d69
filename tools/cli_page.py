"""The page of the command line, from click's tree (pure)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from tools.page_text import page_head, table


def cli_page(program: click.Command) -> str:
    """Every command with its arguments and options, from click's tree."""
    intro = "Every command of `kdist`; `--help` after any of them says the same."
    parts = [page_head("Command line", intro)]
    for path, command in commands(program, ("kdist",)):
        help_text = inspect.cleandoc(command.help or "")
        parts += [f"## {' '.join(path)}\n", usage(path, command), f"{help_text}\n"]
        rows = [parameter_row(each) for each in command.params]
        if rows:
            parts.append(table(rows))
    return "\n".join(parts)


def commands(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=" ".join(path))
        for name in sorted(command.list_commands(context)):
            if (child := command.get_command(context, name)) is not None:
                yield from commands(child, (*path, name))


def usage(path: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join(path))
    return f"```\n{' '.join([*path, *command.collect_usage_pieces(context)])}\n```\n"


def parameter_row(parameter: click.Parameter) -> dict[str, str]:
    if isinstance(parameter, click.Option):
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        return {"Argument or option": names, "Meaning": parameter.help or ""}
    return {"Argument or option": f"`{parameter.human_readable_name}`", "Meaning": ""}

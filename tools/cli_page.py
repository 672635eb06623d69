"""The reference page of the command line, from click's command tree (pure)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from tools.page_text import page_head, table


def cli_page(program: click.Command) -> str:
    """Every command with its arguments and options, from click's tree."""
    intro = "Every command of `kdist`; `--help` after any of them says the same."
    parts = [page_head("Command line", intro)]
    for context in contexts(click.Context(program, info_name="kdist", **program.context_settings)):
        command = context.command
        parts += [f"## {context.command_path}\n", usage(context), f"{help_text(command)}\n"]
        rows = [parameter_row(each, context) for each in command.params if not is_hidden(each)]
        if rows:
            parts.append(table(rows))
    return "\n".join(parts)


def contexts(context: click.Context) -> Iterator[click.Context]:
    """Contexts of the command and all its subcommands, each with its group's as parent."""
    yield context
    group = context.command
    if isinstance(group, click.Group):
        for name in sorted(group.list_commands(context)):
            if (child := group.get_command(context, name)) is not None:
                yield from contexts(click.Context(child, parent=context, info_name=name))


def usage(context: click.Context) -> str:
    pieces = [context.command_path, *context.command.collect_usage_pieces(context)]
    return f"```\n{' '.join(pieces)}\n```\n"


def help_text(command: click.Command) -> str:
    """A command's help; paragraphs that click does not rewrap (they begin with \\b) are blocks."""
    text = inspect.cleandoc(command.help or "")
    return re.sub(
        r"\x08\n((?:.+\n?)+)", lambda found: f"```\n{found[1].rstrip()}\n```\n", text
    ).rstrip()


def is_hidden(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.hidden


def parameter_row(parameter: click.Parameter, context: click.Context) -> dict[str, str]:
    """An option with its values, default and variable, as `--help` has them."""
    if not isinstance(parameter, click.Option):
        return {"Argument or option": f"`{parameter.human_readable_name}`", "Meaning": ""}
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if not parameter.is_flag:
        names += f" `{parameter.make_metavar(context)}`"
    _, meaning = parameter.get_help_record(context) or ("", "")
    return {"Argument or option": names, "Meaning": " ".join(meaning.split())}

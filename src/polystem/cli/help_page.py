"""What `--help` prints: paragraphs as wide as the screen, commands that can be copied, options and their meaning.

Knows no command; whatever is registered with an application can be dressed. Texts are given as they stand in the
source: paragraphs are joined and broken anew, lines that are indented stay lines. Nothing is taken for markup.
Invariant: no line is longer than the screen, unless it is one word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from textwrap import wrap
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

__all__ = ["default_of", "dress", "name_of", "paragraphs_of", "usage_of"]

MOST_COLUMNS = 120
INDENT = "  "
DEEPER = "      "
KIND_OF = {"INT": "N", "FLOAT": "NUMBER", "STR": "TEXT", "PATH": "FILE"}
"""What a value is called that the command does not name itself."""


def dress(app: typer.Typer) -> typer.Typer:
    """Makes an application, and all that is registered with it, print its help as pages."""
    app.info.cls = PagedGroup
    for command in app.registered_commands:
        command.cls = PagedCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            dress(group.typer_instance)
    return app


class PagedCommand(TyperCommand):
    """A command whose help is a page."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_page(self, ctx))


class PagedGroup(TyperGroup):
    """A group of commands whose help is a page."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_page(self, ctx))


def paragraphs_of(text: str) -> Iterator[tuple[str, ...]]:
    """The paragraphs of a help text: one line each, and those that are indented by two, one after the other, together.

    Lines that stay lines come with their indentation taken off, after an empty first one.
    """
    lines: list[str] = []
    for paragraph in text.strip("\n").split("\n\n"):
        if paragraph.startswith(INDENT):
            lines += [line.strip() for line in paragraph.split("\n")]
            continue
        if lines:
            yield ("", *lines)
            lines = []
        yield (" ".join(paragraph.split()),)
    if lines:
        yield ("", *lines)


def name_of(parameter: Any) -> str:
    """An option with what its value is called, or an argument."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper()
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return names if parameter.is_flag else f"{names} {parameter.metavar or _kind_of(parameter)}"


def usage_of(parameter: Any) -> str:
    """An argument as it stands in the line of usage."""
    return name_of(parameter) if parameter.required else f"[{name_of(parameter)}]"


def default_of(parameter: Any) -> tuple[str, bool]:
    """What holds where an option is not given, and whether that is a value, not a description of one."""
    value = parameter.default
    if isinstance(parameter.show_default, str):
        return parameter.show_default, False
    if parameter.required or value is None or value is False or value == [] or callable(value):
        return "", False
    if value is True:
        return parameter.opts[0], True
    if isinstance(value, float):
        return f"{value:g}", True
    return str(value.value if isinstance(value, Enum) else value), True


def _kind_of(parameter: Any) -> str:
    """The choices, or the kind of value."""
    name: str = parameter.display_type(None).strip("<>").removeprefix("list[").removesuffix("]")
    return name if "|" in name else KIND_OF.get(name.upper(), name.upper())


def _page(command: Any, ctx: Any) -> str:
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(console.width, MOST_COLUMNS)
    shown = [each for each in command.get_params(ctx) if not getattr(each, "hidden", False)]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    with console.capture() as captured:
        for part in (
            *_usage(ctx, command, arguments),
            *_prose(command.help or "", console.width),
            *_parameters("Arguments", arguments),
            *_parameters("Options", options),
            *_commands(command, ctx),
        ):
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")) + "\n"


def _usage(ctx: Any, command: Any, arguments: Sequence[Any]) -> Iterator[RenderableType]:
    words = [ctx.command_path, "[OPTIONS]", *map(usage_of, arguments)]
    if getattr(command, "commands", None):
        words.append("COMMAND ...")
    yield Text.assemble(("Usage: ", "bold"), " ".join(words))
    yield ""


def _prose(text: str, columns: int) -> Iterator[RenderableType]:
    for first, *lines in paragraphs_of(text):
        if first:
            yield Text(first)
        for line in lines:
            yield Text("\n".join(_broken(line, columns)), style="cyan", no_wrap=True, overflow="ignore")
        yield ""


def _broken(line: str, columns: int) -> list[str]:
    """A line that stays one, where it fits. A command goes on in the next line as a shell takes it."""
    if len(INDENT + line) <= columns:
        return [INDENT + line]
    is_command = line.startswith("polystem ")
    pieces = line.replace(" --", "\0--").split("\0") if is_command else []
    ending = " \\" if is_command else ""
    if not is_command:
        return wrap(line, columns, initial_indent=INDENT, subsequent_indent=DEEPER)
    rows = [INDENT + pieces[0]]
    for piece in pieces[1:]:
        if len(f"{rows[-1]} {piece}{ending}") <= columns:
            rows[-1] += f" {piece}"
        else:
            rows.append(DEEPER + piece)
    return [*(row + ending for row in rows[:-1]), rows[-1]]


def _parameters(title: str, parameters: Sequence[Any]) -> Iterator[RenderableType]:
    """Those of which something is said; the text above says what an argument without a word of its own is."""
    rows = [(name_of(each), _meaning(each)) for each in parameters if each.help]
    if rows:
        yield from _two_columns(title, rows)


def _meaning(parameter: Any) -> Text:
    text = Text(" ".join((parameter.help or "").split()))
    default, _ = default_of(parameter)
    asides = (
        "required" if parameter.required and parameter.param_type_name == "option" else "",
        f"default: {default}" if default else "",
        f"environment: {parameter.envvar}" if parameter.envvar else "",
    )
    for aside in filter(None, asides):
        text.append(f" [{aside}]", style="dim")
    return text


def _commands(command: Any, ctx: Any) -> Iterator[RenderableType]:
    children: dict[str, Any] = getattr(command, "commands", {})
    if children:
        names = [name for name in command.list_commands(ctx) if not children[name].hidden]
        summaries = (next(paragraphs_of(children[name].help or ""), ("",))[0] for name in names)
        yield from _two_columns("Commands", [(name, Text(text)) for name, text in zip(names, summaries, strict=True)])


def _two_columns(title: str, rows: Sequence[tuple[str, Text]]) -> Iterator[RenderableType]:
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, meaning in rows:
        table.add_row(Text(INDENT + name, style="bold"), meaning)
    yield Text(f"{title}:", style="bold")
    yield table
    yield ""

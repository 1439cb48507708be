"""Tool calls in the text of an answer: each family's syntax, and the parser that finds the calls again."""

from polystem.engine.tools.parser import THINKING_MARKS, OutputParser, open_parser, thinking_opened
from polystem.engine.tools.syntax import TOOL_FORMATS, VISIBLE_CONTROLS, CallSyntax, syntax_of

__all__ = [
    "THINKING_MARKS",
    "TOOL_FORMATS",
    "VISIBLE_CONTROLS",
    "CallSyntax",
    "OutputParser",
    "open_parser",
    "syntax_of",
    "thinking_opened",
]

"""Tokens without a model: one for each byte, and one for each control tag.

Invariant: detokenize(tokenize(text)) = text for every text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from polystem.engine.template import ChatTemplate
from polystem.errors import BadRequest
from polystem.messages import Request

CONTROL_TEXTS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
CHAT_TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\n# Tools\n' }}"
    "{%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{- '<tool_call>' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}"
    "{{- '</tool_call>' }}"
    "{%- endfor %}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

LONGEST_TOKEN_BYTES = max(len(text.encode()) for text in CONTROL_TEXTS)
_CONTROL = re.compile("|".join(re.escape(text) for text in CONTROL_TEXTS))


class ByteTokens:
    """The vocabulary: ids 0 to 255 are bytes, the control tags follow in the order of `CONTROL_TEXTS`."""

    vocab_tokens = 256 + len(CONTROL_TEXTS)
    end_token = 256 + CONTROL_TEXTS.index("<|im_end|>")
    call_open_token = 256 + CONTROL_TEXTS.index("<tool_call>")
    call_close_token = 256 + CONTROL_TEXTS.index("</tool_call>")

    def __init__(self, chat_template: str = CHAT_TEMPLATE) -> None:
        self._template = ChatTemplate(chat_template)

    def tokenize(self, text: str, *, parse_special: bool = True) -> tuple[int, ...]:
        """Token ids of a text; control tags are single tokens where `parse_special`."""
        if not parse_special:
            return tuple(text.encode())
        tokens: list[int] = []
        read = 0
        for match in _CONTROL.finditer(text):
            tokens.extend(text[read : match.start()].encode())
            tokens.append(256 + CONTROL_TEXTS.index(match.group()))
            read = match.end()
        tokens.extend(text[read:].encode())
        return tuple(tokens)

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the tokens of a text, found without reading it."""
        return -(-len(text.encode()) // LONGEST_TOKEN_BYTES)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens; invalid UTF-8 becomes U+FFFD."""
        return b"".join(self.token_bytes(token) for token in tokens).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """What one token stands for. Raises BadRequest for an id outside the vocabulary."""
        if not 0 <= token < self.vocab_tokens:
            raise BadRequest(f"token id {token} is outside the vocabulary of {self.vocab_tokens}", param="prompt")
        return bytes([token]) if token < 256 else CONTROL_TEXTS[token - 256].encode()

    def render(self, request: Request, *, generation_prompt: bool) -> str:
        """The text of a conversation, as the chat template writes it."""
        return self._template.render(request, generation_prompt=generation_prompt)

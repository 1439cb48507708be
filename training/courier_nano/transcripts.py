"""Transcripts of jobs that go well, and of jobs in which a wrong call is answered and put right.

Knows messages, no tokens. A wrong call is marked, so that training can leave it out of the loss.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from polystem.harness.world import HUBS, Call, Job, Package, order_text
from training.courier_nano.template import Message

LAST_WORD = "Done."


@dataclass(slots=True)
class Transcript:
    """Messages, and for each turn of the assistant whether it is one to learn."""

    messages: list[Message] = field(default_factory=list)
    learn: list[bool] = field(default_factory=list)

    def add_call(self, call: Call, result: str, *, learn: bool) -> None:
        function = {"name": call.name, "arguments": call.arguments}
        self.messages.append({"role": "assistant", "content": "", "tool_calls": [{"function": function}]})
        self.messages.append({"role": "tool", "content": result})
        self.learn.append(learn)


def transcript(system: str, package: Package, *, error_share: float = 0.0, seed: object = 0) -> Transcript:
    """The transcript of one package, in which a share of the steps is first done wrong."""
    dice = random.Random(f"{seed}/errors/{package.package_id}")
    job = Job(package)
    made = Transcript([{"role": "system", "content": system}] if system else [])
    made.messages.append({"role": "user", "content": order_text(package)})
    while (call := job.expected()) is not None:
        if dice.random() < error_share:
            wrong = spoil(call, package, dice)
            made.add_call(wrong, job.apply(wrong.name, wrong.arguments).text, learn=False)
        made.add_call(call, job.apply(call.name, call.arguments).text, learn=True)
    made.messages.append({"role": "assistant", "content": LAST_WORD})
    made.learn.append(True)
    return made


def spoil(call: Call, package: Package, dice: random.Random) -> Call:
    """A call that is wrong in its tool or in one argument."""
    if dice.random() < 0.25:
        others = [other for other in package.calls() if other.name != call.name]
        return dice.choice(others)
    key = dice.choice(list(call.arguments))
    return Call(call.name, {**call.arguments, key: _other_value(call.arguments[key], dice)})


def _other_value(right: str, dice: random.Random) -> str:
    if not right.isdigit():
        return dice.choice([hub for hub in HUBS if hub != right])
    digits = list(right)
    if dice.random() < 0.5:
        place = dice.randrange(len(digits) - 1)
        digits[place], digits[place + 1] = digits[place + 1], digits[place]
    else:
        place = dice.randrange(len(digits))
        digits[place] = dice.choice([digit for digit in "0123456789" if digit != digits[place]])
    wrong = "".join(digits)
    return wrong if wrong != right else right[1:] + str((int(right[0]) + 1) % 10)

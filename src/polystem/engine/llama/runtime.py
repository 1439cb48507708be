"""From settings to a running decode loop: loads the model, opens the context, announces itself, loops, frees.

The same code for a child process and a thread. Knows no transport: it is given an inbox and a way to ship reports.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

from polystem.clock import Clock
from polystem.engine.constraint import ConstraintCompiler, Grammar
from polystem.engine.llama.loop import DecodeLoop, Ship
from polystem.engine.llama.native import Batch, NativeContext, NativeModel, Vocabulary, library_build
from polystem.engine.llama.sampling import TokenConstraint
from polystem.engine.llama.settings import LlamaSettings
from polystem.engine.llama.text import PieceTable
from polystem.engine.llama.wire import FAILED, LOOP_TICKET, READY, Command, error_fields
from polystem.engine.tools import VISIBLE_CONTROLS
from polystem.errors import ConstraintError, EngineBuildError, PolystemError


def run_engine(settings: LlamaSettings, inbox: SimpleQueue[Command], ship: Ship, clock: Clock) -> None:
    """Runs one boot of the engine. A failure to load is shipped as FAILED; one of the loop is raised."""
    try:
        model = NativeModel(
            settings.model_path, repack=settings.repack is not False, gpu_layers=settings.gpu_layers
        )  # fmt: skip
    except PolystemError as exc:
        ship([(LOOP_TICKET, FAILED, error_fields(exc))], None)
        return
    try:
        _run_model(model, settings, inbox, ship, clock)
    finally:
        model.close()


def _run_model(
    model: NativeModel, settings: LlamaSettings, inbox: SimpleQueue[Command], ship: Ship, clock: Clock
) -> None:
    try:
        model.memory_kind().check_lends(settings.name)
        context = NativeContext(model, settings)
    except PolystemError as exc:
        ship([(LOOP_TICKET, FAILED, error_fields(exc))], None)
        return
    try:
        vocabulary = model.vocabulary
        _warm_up(context)
        loop = DecodeLoop(
            context, settings, pieces=piece_table(vocabulary), eog=frozenset(vocabulary.eog_tokens()),
            compile_constraint=constraint_door(vocabulary), inbox=inbox, ship=ship, clock=clock,
        )  # fmt: skip
        facts = {
            "build": library_build(),
            "cells_physical": context.physical_cells,
            "weight_bytes": model.weight_bytes,
            "kv_bytes_per_cell": model.cell_bytes(settings.k_type, settings.v_type),
        }
        ship([(LOOP_TICKET, READY, facts)], None)
        loop.run()
    finally:
        context.close()


def _warm_up(context: NativeContext) -> None:
    """One decode, so that the first request does not pay for the first touch of the weights."""
    batch = Batch(1)
    batch.add_decodes([0], [0], [0])
    status = context.decode(batch)
    if status != 0:
        raise EngineBuildError(f"the first decode failed: llama_decode returned {status}")
    context.trim(0, 0)


def hidden_tokens(vocabulary: Vocabulary) -> frozenset[int]:
    """Tokens a reader never sees: end marks, and control tags except those that parsers of tool calls need."""
    visible = {name.encode() for name in VISIBLE_CONTROLS}
    controls = {token for token in vocabulary.control_tokens() if vocabulary.piece(token) not in visible}
    return frozenset(controls | set(vocabulary.eog_tokens()))


def piece_table(vocabulary: Vocabulary) -> PieceTable:
    """The pieces of a vocabulary as a reader sees them."""
    return PieceTable(vocabulary.piece, size=vocabulary.size, hidden=hidden_tokens(vocabulary))


def constraint_door(vocabulary: Vocabulary) -> Callable[[Grammar], TokenConstraint]:
    """Compiles grammars for this vocabulary.

    Takes a second to make for 50,000 tokens: make it before the first request.
    """
    eog = vocabulary.eog_tokens()
    if not eog:
        return _refuse_constraints
    pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
    return ConstraintCompiler(pieces, eos_tokens=eog, control=hidden_tokens(vocabulary) - set(eog)).compile


def _refuse_constraints(_: Grammar) -> TokenConstraint:
    raise ConstraintError("this model has no end token, so that a constrained answer could not end")

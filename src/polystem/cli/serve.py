"""`polystem serve`: a model file behind the OpenAI API, with shared prefixes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from polystem.capacity.fits import FitStore
from polystem.capacity.policy import GateSettings
from polystem.cli.config import ServeCommand, read_serve_command
from polystem.cli.model_file import BUNDLED_MODEL, model_path
from polystem.clock import SystemClock
from polystem.engine.llama import LlamaEngine, LlamaSettings
from polystem.engine.llama.settings import SEQUENCES_LIMIT
from polystem.engine.tools import TOOL_FORMATS
from polystem.fleet import Fleet, FleetSettings, FloorSettings
from polystem.fleet.store import FleetStore
from polystem.serve import ServeSettings
from polystem.serve.server import run_server

CUT_EXIT_CODE = 130
LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
HELP = """Serve a model over the OpenAI API, with its shared prefixes stored once.

Without any option the bundled model, courier-nano, is served on http://127.0.0.1:8080. Try it:

  polystem serve

  polystem serve --model my-model.gguf --cells 65536 --auto-pool

  polystem serve --model my-model.gguf --floor-tps 15 --max-workers 40

  polystem serve --host 0.0.0.0 --api-key-file keys.txt

A KV cell holds one token of one prompt. --cells is how many there are for all requests together; \
a prefix that is shared takes its cells once. GET /kv shows who holds them, POST /polykv/pools stores a prefix, \
--auto-pool finds prefixes by itself.

With --floor-tps no stream shall decode slower than that: a new worker is let in only if all can keep it. \
Who has to wait gets a 429 after --admit-wait-s, which says why and when to come back; its place in the queue is kept. \
A worker that was let in is never refused its next turn. `polystem capacity` shows what the gate knows while the \
server runs, `polystem plan` says beforehand how many workers a floor allows.

A server on a fixed port keeps queue, sessions and pools in a file and comes back with them after a crash; see \
--store. One on a free port (--port 0) keeps nothing, for no client will know it again.

Every option is also a key of a TOML file (--config) and an environment variable: --max-body-bytes is \
max_body_bytes and POLYSTEM_MAX_BODY_BYTES. Flags win over the environment, the environment over the file.

The first Ctrl-C or SIGTERM lets running requests finish; the second ends at once.
"""

ENGINE = LlamaSettings(model_path=model_path(BUNDLED_MODEL))
SERVE = ServeSettings()
FLOOR = FloorSettings()
FLEET = FleetSettings()
GATE = GateSettings()
SEQUENCES_HELP = f"Most pools and sessions at once, up to {SEQUENCES_LIMIT}."

ModelFlag = Annotated[
    str | None, typer.Option(metavar="FILE", help=f"GGUF file, or '{BUNDLED_MODEL}'.", show_default=BUNDLED_MODEL)
]
NameFlag = Annotated[str | None, typer.Option(metavar="NAME", help="Name on the wire.", show_default="the file's name")]
AliasFlag = Annotated[list[str] | None, typer.Option(metavar="NAME", help="One more name for the model; repeatable.")]
FloorFlag = Annotated[
    float | None, typer.Option(metavar="X", help="Tokens/s that every stream is to keep.", show_default="no floor")
]
ModeFlag = Annotated[
    str | None,
    typer.Option(
        metavar="enforced|advisory", help="Whether the floor is kept, or only told of.", show_default=GATE.policy.mode
    ),
]
SaturationFlag = Annotated[
    str | None,
    typer.Option(
        metavar="reject|warn",
        help="What becomes of whom the floor has no room for.",
        show_default=GATE.policy.on_saturation,
    ),
]
WaitFlag = Annotated[
    float | None,
    typer.Option(
        metavar="S", help="Longest wait of a new worker; 0 is 429 at once.", show_default=f"{FLOOR.admit_wait_s:g}"
    ),
]
WorkersFlag = Annotated[int | None, typer.Option(metavar="N", help="Most workers at a time.", show_default="no limit")]
QueueFlag = Annotated[
    int | None, typer.Option(metavar="N", help="Most workers that wait.", show_default=str(GATE.queue_limit))
]
IdleFlag = Annotated[
    float | None,
    typer.Option(
        metavar="S", help="How long a worker may stay away between turns.", show_default=f"{GATE.session_ttl_s:g}"
    ),
]
RuleFlag = Annotated[
    str | None,
    typer.Option(
        metavar="floor|measured-mean",
        help="Who decides about newcomers; measured-mean has no model and is there to compare with.",
        show_default="floor",
    ),
]
StoreFlag = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|none",
        help="Where queue, sessions, pools and transcripts outlive a restart.",
        show_default="fleet-PORT.db in the user's state folder; none with --port 0",
    ),
]
HostFlag = Annotated[str | None, typer.Option(metavar="HOST", help="Address to listen on.", show_default=SERVE.host)]
PortFlag = Annotated[
    int | None,
    typer.Option(metavar="PORT", help="Port to listen on; 0 picks a free one.", show_default=str(SERVE.port)),
]
CellsFlag = Annotated[
    int | None, typer.Option(metavar="N", help="KV cells for all requests together.", show_default=str(ENGINE.cells))
]
ContextFlag = Annotated[
    int | None, typer.Option(metavar="N", help="Most tokens of one request.", show_default="the model's")
]
SequencesFlag = Annotated[
    int | None, typer.Option(metavar="N", help=SEQUENCES_HELP, show_default=str(ENGINE.sequences))
]
ThreadsFlag = Annotated[
    int | None, typer.Option(metavar="N", help="CPU threads of a decode step.", show_default="by cores")
]
TemplateFlag = Annotated[
    str | None, typer.Option(metavar="FILE", help="Chat template (jinja2).", show_default="the one in the model file")
]
ToolFormatFlag = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"How the model writes tool calls: {', '.join(TOOL_FORMATS)}.",
        show_default="by the chat template",
    ),
]
AutoPoolFlag = Annotated[
    bool | None, typer.Option("--auto-pool/--no-auto-pool", help="Store prefixes that are seen twice by themselves.")
]
PoolsFlag = Annotated[
    int | None,
    typer.Option(metavar="N", help="Most pools at once; 0 switches pools off.", show_default="as many as sequences"),
]
OwnerPoolsFlag = Annotated[
    int | None,
    typer.Option(metavar="N", help="Most pools that one session owns.", show_default=str(FLEET.pools_per_owner)),
]
WindowFlag = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        help="A session's window (num_ctx) lapses so long after its last request.",
        show_default=f"{FLEET.window_ttl_s:g}",
    ),
]
KeyFlag = Annotated[
    list[str] | None, typer.Option(metavar="KEY", help="Let in who sends this key; repeatable. Needed off loopback.")
]
KeyFileFlag = Annotated[str | None, typer.Option(metavar="FILE", help="A file of keys, one a line.")]
SessionHeaderFlag = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A header that names the session, read before the known ones; repeatable. 'none' reads none.",
    ),
]
MoveLinesFlag = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGEX",
        help="System prompt lines to move in front of the first user turn, so that the rest can be shared; repeatable.",
    ),
]
BodyFlag = Annotated[
    int | None, typer.Option(metavar="BYTES", help="Largest request body.", show_default=str(SERVE.max_body_bytes))
]
TimeoutFlag = Annotated[
    float | None,
    typer.Option(metavar="S", help="Longest time one request may take.", show_default=f"{SERVE.request_timeout_s:g}"),
]
GraceFlag = Annotated[
    float | None,
    typer.Option(
        metavar="S", help="How long running requests may go on at the end.", show_default=f"{SERVE.drain_grace_s:g}"
    ),
]
PingFlag = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        help="Longest silence of a stream that asks to be kept alive; 0 sends no comments.",
        show_default=f"{SERVE.ping_interval_s:g}",
    ),
]
LogFlag = Annotated[
    str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.", show_default="warning")
]
ConfigFlag = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Settings in TOML, also named by POLYSTEM_CONFIG.")
]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("serve", help=HELP)(serve)


def serve(
    model: ModelFlag = None,
    model_name: NameFlag = None,
    model_alias: AliasFlag = None,
    host: HostFlag = None,
    port: PortFlag = None,
    cells: CellsFlag = None,
    context: ContextFlag = None,
    sequences: SequencesFlag = None,
    threads: ThreadsFlag = None,
    chat_template_file: TemplateFlag = None,
    tool_format: ToolFormatFlag = None,
    auto_pool: AutoPoolFlag = None,
    pools_max: PoolsFlag = None,
    pools_per_owner: OwnerPoolsFlag = None,
    window_ttl_s: WindowFlag = None,
    floor_tps: FloorFlag = None,
    floor_mode: ModeFlag = None,
    on_saturation: SaturationFlag = None,
    admit_wait_s: WaitFlag = None,
    max_workers: WorkersFlag = None,
    queue_limit: QueueFlag = None,
    session_ttl_s: IdleFlag = None,
    admission_rule: RuleFlag = None,
    store: StoreFlag = None,
    api_key: KeyFlag = None,
    api_key_file: KeyFileFlag = None,
    session_header: SessionHeaderFlag = None,
    move_lines: MoveLinesFlag = None,
    max_body_bytes: BodyFlag = None,
    request_timeout_s: TimeoutFlag = None,
    drain_grace_s: GraceFlag = None,
    sse_ping_interval_s: PingFlag = None,
    log_level: LogFlag = None,
    config: ConfigFlag = None,
) -> None:
    flags = dict(locals())
    file = flags.pop("config")
    _run(read_serve_command({name: flag or None if flag == [] else flag for name, flag in flags.items()}, file=file))


def _run(command: ServeCommand) -> None:
    logging.basicConfig(level=command.log_level.upper(), stream=sys.stderr, format=LOG_FORMAT)
    clock = SystemClock()
    engine = LlamaEngine(command.engine, clock=clock)
    store = None if command.store is None else FleetStore(command.store)
    fleet = Fleet(engine, clock=clock, settings=command.fleet, floor=command.floor, store=store, fits=FitStore())
    _say(f"{command.engine.name}: {command.engine.cells} cells, {command.engine.sequences} sequences")
    for line in policy_lines(command):
        _say(line)
    end = run_server(
        fleet,
        command.serve,
        on_listening=lambda url: _say(f"listening on {url} while the model is loaded"),
        on_ready=lambda url: _say(how_to_try(url, command)),
    )
    _say("drained, bye" if end == "drained" else "ended before all requests were finished")
    if end == "cut":
        raise typer.Exit(CUT_EXIT_CODE)


def policy_lines(command: ServeCommand) -> Iterator[str]:
    """What holds for whoever comes: the floor, the queue, and what outlives the server."""
    gate, policy = command.floor.gate, command.floor.gate.policy
    limit = "" if gate.max_workers is None else f", at most {gate.max_workers} workers at a time"
    if policy.floor_tps is None:
        yield f"floor: none, so everybody is let in as far as cells reach{limit}; --floor-tps X sets one"
    else:
        yield f"floor: {policy.floor_tps:g} tokens/s for every stream, {policy.mode}, {policy.on_saturation}{limit}"
    if policy.waits or gate.max_workers is not None:
        wait_s = command.floor.admit_wait_s
        wait = f"waits {wait_s:g} s, then gets 429" if wait_s else "gets 429 at once"
        yield f"queue: who finds no room {wait}; {gate.queue_limit} may wait, a place is kept {gate.place_kept_s:g} s"
    if command.store is None:
        yield "store: none; queue, sessions and pools end with this server"
    else:
        yield f"store: {command.store}; queue, sessions and pools outlive this server"


def how_to_try(url: str, command: ServeCommand) -> str:
    """Commands to copy for who has just started a server."""
    has_keys = bool(command.serve.api_keys)
    key, flag = (" -H 'Authorization: Bearer KEY'", " --api-key KEY") if has_keys else ("", "")
    body = '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}'
    return (
        f"ready; the API is at {url}/v1. Try it:\n"
        f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'\n"
        f"  curl {url}/kv{key}\n"
        f"  polystem capacity --url {url}{flag}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

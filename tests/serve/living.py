"""An app over a scripted engine that lives in whatever event loop serves it: schemathesis brings its own."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from polystem.clock import SystemClock
from polystem.engine.scripted import ScriptedEngine, ScriptedSettings
from polystem.fleet import Fleet, FloorSettings
from polystem.serve import ServeSettings, build_app


class LivingApp:
    """An app that starts its fleet in the event loop that serves it, and ends it there.

    Who is not let in is told at once: no request of it waits for another to end.
    """

    def __init__(self, engine: ScriptedSettings | None = None) -> None:
        self._app: ASGIApp | None = None
        self._settings = engine or ScriptedSettings()
        self.fleet: Fleet | None = None
        self.engine: ScriptedEngine | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            assert self._app is not None
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "lifespan.shutdown":
            assert message["type"] == "lifespan.startup"
            clock = SystemClock()
            self.engine = ScriptedEngine(self._settings, clock=clock)
            self.fleet = Fleet(self.engine, clock=clock, floor=FloorSettings(admit_wait_s=0))
            await self.fleet.start()
            self._app = build_app(self.fleet, ServeSettings(), clock=clock)
            await send({"type": "lifespan.startup.complete"})
        assert self.fleet is not None
        await self.fleet.aclose()
        await send({"type": "lifespan.shutdown.complete"})

"""Builds the HTTP application around a fleet. It starts and ends no fleet: who made it does."""

from __future__ import annotations

import secrets

from fastapi import FastAPI
from starlette.types import ASGIApp

from polystem import __version__
from polystem.clock import Clock, SystemClock
from polystem.fleet import Fleet
from polystem.serve import errors
from polystem.serve.anthropic.errors import ErrorShape
from polystem.serve.anthropic.routes import messages_routes
from polystem.serve.capacity_routes import capacity_routes
from polystem.serve.control_routes import pool_routes
from polystem.serve.description import DescribedApp
from polystem.serve.desk import Desk
from polystem.serve.door import Door
from polystem.serve.metrics import Metrics
from polystem.serve.moved_lines import LineRule
from polystem.serve.openai_routes import openai_routes
from polystem.serve.session_ids import SessionNames
from polystem.serve.session_routes import session_routes
from polystem.serve.settings import ServeSettings
from polystem.serve.state_routes import state_routes
from polystem.serve.text_routes import text_routes


class _App(DescribedApp):
    """Whatever goes wrong on the Messages API, also before its routes and after them, comes in that API's shape."""

    def build_middleware_stack(self) -> ASGIApp:
        return ErrorShape(super().build_middleware_stack())


def build_app(fleet: Fleet, settings: ServeSettings, *, clock: Clock | None = None) -> FastAPI:
    """The application; several may live in one process.

    Documentation pages are left out: they load scripts from afar.
    """
    clock = clock or SystemClock()
    metrics = Metrics(fleet)
    desk = Desk(
        fleet,
        settings,
        clock,
        metrics,
        boot_id=secrets.token_hex(8),
        started_at=int(clock.wall_s()),
        session_names=SessionNames(settings.session_headers),
        line_rule=LineRule(settings.move_lines),
    )
    app = _App(
        title="Polystem",
        version=__version__,
        summary="The OpenAI API and Anthropic's Messages API over shared prefixes, and a control plane for them.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.needs_key = bool(settings.api_keys)
    app.add_middleware(Door, settings=settings, metrics=metrics, boot_id=desk.boot_id)
    errors.install(app)
    for routes in (
        openai_routes,
        messages_routes,
        pool_routes,
        session_routes,
        capacity_routes,
        text_routes,
        state_routes,
    ):
        app.router.routes.extend(routes(desk).routes)  # as they are: to include them is to build each a second time
    return app

"""The OpenAPI description: the pieces that routes share, and what is mended in the whole."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from polystem.serve.shapes import ErrorAnswer

Responses = dict[int | str, dict[str, Any]]

ERROR_MEANING = {
    400: "a field is wrong, contradicts another, or is not supported; `param` names it",
    401: "no API key, or a wrong one",
    404: "the named thing does not exist",
    409: "contradicts the present state",
    413: "the body is too large",
    429: "no room at present; retry after `Retry-After` seconds",
    500: "a fault of the server",
    501: "this server was started without it",
    503: "the engine starts or restarts, or the server shuts down; `reason` says which",
    504: "not finished within the time limit",
}


def errors_of(*statuses: int) -> Responses:
    """The error answers of a route."""
    return {status: {"model": ErrorAnswer, "description": ERROR_MEANING[status]} for status in statuses}


def describes(shape: type[BaseModel], *, stream: bool = False) -> Responses:
    """The good answer of a route, and that it may come as a stream."""
    told: dict[str, Any] = {"model": shape, "description": "done"}
    if stream:
        told["content"] = {"text/event-stream": {}}  # a schema would be that of one event, and there are several kinds
    return {200: told}


class DescribedApp(FastAPI):
    """A FastAPI whose description does not claim what it does not do: wrong bodies are 400 here, never 422."""

    needs_key = False

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = _mended(super().openapi(), needs_key=self.needs_key)
        return self.openapi_schema


def _mended(schema: dict[str, Any], *, needs_key: bool) -> dict[str, Any]:
    for path, methods in schema["paths"].items():
        for told in methods.values():
            told["responses"].pop("422", None)
            if not needs_key or path == "/health":
                told["responses"].pop("401", None)
    components = schema["components"]
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    if needs_key:
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer"},
            "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        schema["security"] = [{"key": []}, {"x_api_key": []}]
        schema["paths"]["/health"]["get"]["security"] = []
    return schema

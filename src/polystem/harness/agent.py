"""The courier agent: a LangGraph graph of a model node and a tools node, gone round until the package is at its end.

Knows no server and no record; both nodes belong to the errand's mode.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from polystem.harness.errand import Errand, TripState, TripUpdate, opening_state

__all__ = ["CourierGraph", "build_courier_graph", "run_errand"]


class CourierGraph(Protocol):
    """The part of a compiled graph that is used here."""

    async def ainvoke(self, input: Any, config: Any = None, *, context: Any = None) -> Any: ...


async def _model(state: TripState, runtime: Runtime[Errand]) -> TripUpdate:
    return await runtime.context.mode.model(state, runtime.context)


async def _tools(state: TripState, runtime: Runtime[Errand]) -> TripUpdate:
    return await runtime.context.mode.tools(state, runtime.context)


def _ended(state: TripState) -> bool:
    return state["delivered"] or state["cause"] is not None


def _after_model(state: TripState) -> str:
    if _ended(state):
        return END
    return "tools" if state["pending"] else "model"


def _after_tools(state: TripState) -> str:
    return END if _ended(state) else "model"


def build_courier_graph() -> CourierGraph:
    """One graph serves all agents: what tells them apart is state and context."""
    graph = StateGraph(TripState, context_schema=Errand)
    graph.add_node("model", _model)  # pyright: ignore[reportUnknownMemberType] # untyped cache policy
    graph.add_node("tools", _tools)  # pyright: ignore[reportUnknownMemberType] # untyped cache policy
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", _after_model, ["tools", "model", END])
    graph.add_conditional_edges("tools", _after_tools, ["model", END])
    return cast("CourierGraph", graph.compile())  # pyright: ignore[reportUnknownMemberType] # untyped checkpointer


async def run_errand(graph: CourierGraph, errand: Errand, *, turns: int) -> TripState:
    """Carries one package to its end in at most `turns` turns, on a thread of its own."""
    config = {"configurable": {"thread_id": errand.session_id}, "recursion_limit": 2 * turns + 2}
    return cast("TripState", await graph.ainvoke(opening_state(errand), config, context=errand))

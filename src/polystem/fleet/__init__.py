"""Sessions and turns on an engine, through a gate and a pool."""

from polystem.fleet.fleet import Fleet
from polystem.fleet.gate import Booking, CellGate, Gate, Lease
from polystem.fleet.session import ClosedSession, SessionView
from polystem.fleet.settings import FleetSettings, FloorSettings
from polystem.fleet.statistics import CellCount, FleetCounters, FleetStatistics
from polystem.fleet.turn import AttachReport, Divergence, Turn, TurnView

__all__ = [
    "AttachReport",
    "Booking",
    "CellCount",
    "CellGate",
    "ClosedSession",
    "Divergence",
    "Fleet",
    "FleetCounters",
    "FleetSettings",
    "FleetStatistics",
    "FloorSettings",
    "Gate",
    "Lease",
    "SessionView",
    "Turn",
    "TurnView",
]

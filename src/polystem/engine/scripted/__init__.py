"""The engine that ships for tests and demonstrations: real cell arithmetic, scripted answers, no native code."""

from polystem.engine.scripted.answer import Answer, Script
from polystem.engine.scripted.engine import ScriptedEngine
from polystem.engine.scripted.settings import ScriptedSettings, StepCost
from polystem.engine.scripted.tokens import ByteTokens

__all__ = ["Answer", "ByteTokens", "Script", "ScriptedEngine", "ScriptedSettings", "StepCost"]

"""Constrained decoding with llguidance: a grammar made from a request, and its matcher over a vocabulary.

llguidance's one door. A `Grammar` is plain text and travels; a `Constraint` lives where the logits are.
"""

from polystem.engine.constraint.grammar import Grammar, grammar_for
from polystem.engine.constraint.matcher import Constraint, ConstraintCompiler

__all__ = ["Constraint", "ConstraintCompiler", "Grammar", "grammar_for"]

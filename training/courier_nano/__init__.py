"""Trains courier-nano, the small language model of the harness, from nothing but the courier world."""

"""Measures a fleet: a fixed world of packages, sweeps over floors, records."""

"""Trains the models that Polystem ships; needs the training extra."""

"""Metamorphic laws: what has to stay the same when the way a thing is computed changes."""

"""How iterations run: step by step, replayed, or compiled."""

from legato.engine.stepping import forget
from legato.engine.switch import Compiled, Eager, Engine, Replayed

__all__ = ["Compiled", "Eager", "Engine", "Replayed", "forget"]

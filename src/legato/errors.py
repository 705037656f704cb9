"""Everything legato raises or warns with, so that users can catch it by name."""

from __future__ import annotations


class LegatoError(Exception):
    """Base class of all errors raised on purpose by legato."""


class InputError(LegatoError, ValueError):
    """An argument has the wrong shape, type, device, range, or holds NaN or infinity."""


class DomainError(InputError):
    """A point lies outside the interior of a geometry's domain."""


class EmptyDomainError(InputError):
    """The constraints of a problem have no point in common, so that it has no solution."""


class StepError(InputError):
    """A step size violates its condition, or cannot be derived from the problem."""


class MissingProxError(LegatoError, LookupError):
    """No closed form is registered for a pair (function, geometry)."""


class MissingConjugateError(LegatoError, NotImplementedError):
    """The convex conjugate of a function is not known in closed form."""


class DivergenceError(LegatoError, ArithmeticError):
    """An iteration produced NaN or infinity."""


class GradientError(LegatoError, RuntimeError):
    """A gradient strategy does not apply to this problem or algorithm."""


class MissingExtraError(LegatoError, ModuleNotFoundError):
    """A package that comes with one of legato's extras is not installed."""


class LegatoWarning(UserWarning):
    """Base class of all warnings issued by legato."""


class NotConvergedWarning(LegatoWarning):
    """A solve ended before it arrived: at its tolerance, or at rest where none was chosen."""


class InexactGradientWarning(LegatoWarning):
    """A backward linear solve missed its tolerance: the gradient is only approximate."""


class NonContractiveWarning(LegatoWarning):
    """The iteration does not contract at its solution: the gradient should not be trusted."""


class EagerWarning(LegatoWarning):
    """A solve runs step by step although another engine was asked for."""


class NonFiniteGradientWarning(LegatoWarning):
    """A gradient holds NaN or infinity, mostly because it is too large for its precision."""


class ClosureError(InputError):
    """A closure is missing, returned no loss, or did not call backward."""


class NoInfluenceError(InputError):
    """Parameters do not influence the loss that is to be minimised over them."""


class ProxError(InputError):
    """A prox changed the dtype, device or shape of a parameter, or does not suit the rule."""


class NonFiniteLossError(DivergenceError):
    """A loss or its gradient is NaN or infinite where it has to be a number."""


class NoStepError(LegatoError, ArithmeticError):
    """No step that an optimiser tried was acceptable; the parameters are where they were."""


class CheckpointError(InputError):
    """A checkpoint cannot be read, or belongs to another problem."""


class LawError(LegatoError, AssertionError):
    """A class breaks a law of its kind: which, by how much, and what to look at."""


class FailedStepWarning(LegatoWarning):
    """A fit ended early because a step failed."""


class CheckpointWarning(LegatoWarning):
    """A checkpoint could not be written; the last good one is still there."""

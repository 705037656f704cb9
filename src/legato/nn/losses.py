"""Two losses on a segmentation: the paper's, and the one with healthier gradients."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from legato._support.checks import is_concrete
from legato.errors import InputError


def softmax_loss(
    log_probabilities: Tensor,
    target: Tensor,
    *,
    class_weights: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    r"""The paper's loss on probabilities (errata 12), averaged over labelled pixels.

    .. math:: \log \sum_k e^{u_i^k} − u_i^{g_i}

    It takes log u, such as :class:`Potts` returns.
    With 3 labels it lies in [0.551445, 1.551445]. Reference: Section 7.2 of Ochs et al. (2016).
    """
    target = _require_target(log_probabilities, target, ignore_index)
    return F.cross_entropy(
        log_probabilities.exp(), target, weight=class_weights, ignore_index=ignore_index
    )


def log_loss(
    log_probabilities: Tensor,
    target: Tensor,
    *,
    class_weights: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    r"""The negative log-likelihood, averaged over labelled pixels: NLLLoss, with checked labels.

    .. math:: −\log u_i^{g_i}

    It takes log u, such as :class:`Potts` returns, so that it is finite, with useful gradients,
    where u itself has rounded to 0.
    Reference: Remark 3 of Ochs et al. (2016).
    """
    target = _require_target(log_probabilities, target, ignore_index)
    return F.nll_loss(log_probabilities, target, weight=class_weights, ignore_index=ignore_index)


def _require_target(u: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    expected = (u.shape[0], *u.shape[2:])
    if tuple(target.shape) != tuple(expected):
        raise InputError(
            f"target must have shape {tuple(expected)} for probabilities of shape "
            f"{tuple(u.shape)}, not {tuple(target.shape)}."
        )
    if target.is_floating_point():
        raise InputError(f"target must hold integer labels, not {target.dtype}.")
    if target.device != u.device:
        raise InputError(f"target is on {target.device}, the probabilities are on {u.device}.")
    target = target.long()
    if not target.is_cuda and not target.is_meta and is_concrete():
        known = target[target != ignore_index]
        if known.numel() == 0:
            raise InputError(
                f"No pixel is labelled: all of target equals ignore_index = {ignore_index}, and a "
                "mean over no pixels is NaN. Skip this batch."
            )
        lowest, highest = int(known.min()), int(known.max())
        if lowest < 0 or highest >= u.shape[1]:
            raise InputError(
                f"target holds labels from {lowest} to {highest}, but there are {u.shape[1]} "
                f"labels, 0 to {u.shape[1] - 1}. Mark unknown pixels with ignore_index."
            )
    return target

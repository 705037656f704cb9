"""The loss of a segmentation, summed so that pixels of all processes weigh alike."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from legato.studies.segment.data import IGNORE
from legato.studies.segment.global_layer import Segmentation


def pixel_loss(found: Segmentation, labels: Tensor, kind: str) -> Tensor:
    """The chosen loss, summed over labelled pixels.

    Without a global layer both are the network's cross-entropy: with W = 0 the layer is a softmax.
    """
    if found.output is None:
        log_probabilities = found.scores.logits.float().log_softmax(1)
    elif kind == "paper":
        log_probabilities = found.output.probabilities.log_softmax(1)
    else:
        log_probabilities = found.output.log_probabilities
    return F.nll_loss(log_probabilities, labels, ignore_index=IGNORE, reduction="sum")

"""Importing this lets deepinv be imported where torchvision's compiled operators do not load.

They need CUDA libraries, also where there is no GPU. deepinv imports the package, but nothing that
is run here uses these two operators, whose absence would stop the import.
"""

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

try:
    import torchvision  # noqa: F401  (where it loads, defining its operators again ends the process)
except (ImportError, RuntimeError):
    _operators = torch.library.Library("torchvision", "FRAGMENT")
    for _schema in _SCHEMAS:
        if not hasattr(torch.ops.torchvision, _schema.partition("(")[0]):
            _operators.define(_schema)

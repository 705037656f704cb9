"""A data loader whose forked workers solve and differentiate; prints how many solves they made.

    python stress/forked_workers.py nothing|solve|backward|threads NUMBER_OF_THREADS

The first argument says what the parent has done before it forks: torch's, OpenMP's and the
kernels' own threads exist from then on, and a fork copies none of them.
"""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

import torch
from subjects import SUBJECTS_TO_REPEAT
from torch.utils.data import DataLoader, Dataset

from legato.errors import LegatoWarning

NAMES = list(SUBJECTS_TO_REPEAT)


def gradients(name: str, differentiate: bool = True) -> list[torch.Tensor]:
    subject = SUBJECTS_TO_REPEAT[name]()
    leaves = {k: v.float().requires_grad_(differentiate) for k, v in subject.inputs.items()}
    value = subject.compute(leaves)
    if not differentiate:
        return [value]
    return [value.detach(), *torch.autograd.grad(value.square().sum(), list(leaves.values()))]


class Solves(Dataset[Any]):
    """Item i is the gradient of subject i: computed in whatever process asks for it."""

    def __len__(self) -> int:
        return 3 * len(NAMES)

    def __getitem__(self, index: int) -> tuple[int, list[torch.Tensor]]:
        return index, gradients(NAMES[index % len(NAMES)])


def main(first: str, threads: int) -> int:
    warnings.simplefilter("ignore", LegatoWarning)
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    torch.set_num_threads(threads)
    if first == "solve":
        torch.randn(2000, 2000).sum()  # starts OpenMP's threads where there are several
        for name in NAMES:
            gradients(name, differentiate=False)
    elif first == "backward":
        for name in NAMES:
            gradients(name)
    elif first == "threads":
        started = [threading.Thread(target=gradients, args=(name,)) for name in NAMES]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    loader = DataLoader(
        Solves(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=120
    )
    found = dict(iter(loader))
    for index, tensors in found.items():
        for tensor, right in zip(tensors, gradients(NAMES[index % len(NAMES)]), strict=True):
            torch.testing.assert_close(tensor, right, rtol=1e-4, atol=1e-6)
    print(len(found))
    return 0 if len(found) == len(Solves()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))

"""deepinv: total variation by its denoiser and by deep equilibria."""

from __future__ import annotations

from typing import Any

import without_torchvision  # noqa: F401  (first: deepinv may not import without it)

# isort: split
import deepinv
import torch
from contract import Contestant, Data, Methods
from torch import Tensor

from contestants.torch_side import as_image, contestant


def _denoiser(problem: str, iterations: int, criterion: float):  # type: ignore[no-untyped-def]
    def build(data: Data) -> Contestant:
        def prepare(t: dict[str, Tensor]):  # type: ignore[no-untyped-def]
            image = as_image(t["y"])

            def solve(theta: Tensor) -> Tensor:
                # Made anew: the model would start from its last solution.
                model = deepinv.models.TVDenoiser(n_it_max=iterations, crit=criterion)
                return model(image, theta[0])

            return solve

        return contestant(problem, data, prepare)

    return build


def _equilibrium(problem: str, algorithm: str):  # type: ignore[no-untyped-def]
    """A deep equilibrium model with λ as its parameter."""

    def build(data: Data) -> Contestant:
        def prepare(t: dict[str, Tensor]):  # type: ignore[no-untyped-def]
            image = as_image(t["y"])
            physics = deepinv.physics.Denoising()
            settings: dict[str, Any] = {
                "data_fidelity": deepinv.optim.L2(),
                "prior": deepinv.optim.TVPrior(n_it_max=200),
                "max_iter": 20,
                "unfold": True,
                "trainable_params": ["lambda"],
                "DEQ": True,
            }

            def solve(theta: Tensor) -> Tensor:
                settings["lambda_reg"] = float(theta[0])
                if algorithm == "PGD":
                    model = deepinv.optim.PGD(stepsize=0.5, **settings)
                else:
                    model = deepinv.optim.PDCP(stepsize=0.5, stepsize_dual=0.5, **settings)
                weight = next(p for p in model.parameters() if p.requires_grad)
                found = model(image, physics)
                return _Passed.apply(theta, found, weight)

            return solve

        return contestant(problem, data, prepare, "λ lives in the model, in its own precision")

    return build


class _Passed(torch.autograd.Function):
    """Hands the gradient of the model's own λ on to θ."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, found: Tensor, weight: Tensor) -> Tensor:
        ctx.found, ctx.weight = found, weight
        return found.detach().clone()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(ctx.found, ctx.weight, cotangent)
        return gradient.to(cotangent.dtype).reshape(1), None, None


METHODS: Methods = {
    "tv1d": {
        "TVDenoiser, default": _denoiser("tv1d", 1000, 1e-5),
        "TVDenoiser, 2000 iterations": _denoiser("tv1d", 2000, 0.0),
    },
    "tv2d_isotropic": {
        "TVDenoiser, default": _denoiser("tv2d_isotropic", 1000, 1e-5),
        "TVDenoiser, 500 iterations": _denoiser("tv2d_isotropic", 500, 0.0),
        "DEQ, PGD": _equilibrium("tv2d_isotropic", "PGD"),
        "DEQ, PDCP (primal–dual)": _equilibrium("tv2d_isotropic", "PDCP"),
    },
}

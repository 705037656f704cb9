"""The README's program, and the picture beside it.

Learns how much total-variation denoising may smooth, by place and direction, from a clean
picture. Usage: python examples/readme.py [PICTURE.png]
"""

import re
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch

ROOT = Path(__file__).resolve().parents[1]


def readme_program() -> str:
    """The first Python block of the README: what is printed there is what runs here."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert found, "README.md has lost its program"
    return found.group(1)


def picture(names: dict, path: Path) -> None:
    clean, noisy = names["clean"], names["noisy"]
    learned = names["denoise"](names["theta"]).detach()
    learned_weights = names["weights"](names["theta"]).detach()
    best, single = min(
        (
            float(
                (names["denoise"](torch.full((2, 6, 6), float(t))).detach() - clean).square().mean()
            ),
            float(t),
        )
        for t in torch.linspace(-6, 0, 25)
    )
    uniform = names["denoise"](torch.full((2, 6, 6), single)).detach()
    figure, grid = plt.subplots(2, 3, figsize=(8, 5.2), layout="constrained")
    axes = [*grid.flat]
    error = float((learned - clean).square().mean())
    for axis, image, title in (
        (axes[0], clean, "truth"),
        (axes[1], noisy, f"noisy, {_psnr(float((noisy - clean).square().mean())):.1f} dB"),
        (axes[2], uniform, f"best single weight, {_psnr(best):.1f} dB"),
        (axes[3], learned, f"learned weights, {_psnr(error):.1f} dB"),
    ):
        axis.imshow(image.numpy(), cmap="gray", vmin=-0.2, vmax=1.2)
        axis.set_title(title)
    for axis, image, title in zip(
        axes[4:], learned_weights, ("λ vertical", "λ horizontal"), strict=True
    ):
        shown = axis.imshow(image.numpy(), cmap="viridis", vmin=0, vmax=1)
        axis.set_title(title)
    figure.colorbar(shown, ax=axes[4:], shrink=0.8, extend="max")
    for axis in axes:
        axis.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"best single weight {_psnr(best):.2f} dB, learned weights {_psnr(error):.2f} dB")


def _psnr(mean_square: float) -> float:
    return -10 * torch.log10(torch.tensor(mean_square)).item()


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "out" / "readme.png"
    torch.set_num_threads(1)
    begin = time.perf_counter()
    names: dict = {}
    exec(compile(readme_program(), "README.md", "exec"), names)
    print(f"The README's program ran in {time.perf_counter() - begin:.1f} s.")
    picture(names, path)
    print(f"The picture is in {path}")


if __name__ == "__main__":
    main()

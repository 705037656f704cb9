"""The programs of docs/start.md, and the picture beside them.

Learns the penalties of a lasso, one for each feature. Usage: python examples/start.py [PICTURE.png]
"""

import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

ROOT = Path(__file__).resolve().parents[1]


def programs() -> list[str]:
    """What is printed on the page is what runs here."""
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def picture(names: dict, path: Path) -> None:
    """The coefficients before and after learning, and the loss on the way."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=(2, 1), layout="constrained")
    features = torch.arange(20)
    axes[0].bar(features, names["truth"], color="0.88", width=0.9, label="truth")
    axes[0].plot(features, names["before"], "o", color="C1", label="penalties of 1")
    axes[0].plot(features, names["after"], "o", color="C0", label="learned penalties")
    axes[0].set(xlabel="feature", ylabel="coefficient", title="the solution", xticks=[0, 5, 10, 15])
    axes[0].legend()
    axes[1].plot(names["fit"].history.loss, "o-", color="C0", markersize=4)
    axes[1].set(xlabel="step", ylabel="validation loss", title="learning", ylim=(0, None))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=180)
    plt.close(figure)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "out" / "start.png"
    names: dict = {"__name__": "__main__"}
    for program in programs():
        exec(compile(program, "docs/start.md", "exec"), names)
    picture(names, path)
    print(f"The picture is in {path}")


if __name__ == "__main__":
    main()

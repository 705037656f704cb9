"""Everything in a few minutes: the README's program, the paper's toy, a segmentation learned end
to end, and one page that shows it all. No download, no GPU. Usage: python examples/demo.py [FOLDER]
"""

import html
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>legato: the demo</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto;
         padding: 0 1rem; color: #222; }}
  img {{ max-width: 100%; display: block; margin: 0.5rem 0 1.5rem; }}
  table {{ border-collapse: collapse; margin: 1rem 0; }}
  td, th {{ padding: 0.25rem 1rem 0.25rem 0; text-align: right; border-bottom: 1px solid #ddd; }}
  td:first-child, th:first-child {{ text-align: left; }}
</style>
<h1>legato: the demo</h1>
<p>{when}; every number and picture on this page was computed by this run.</p>
{sections}
</html>
"""


def run(*command: str) -> None:
    """Run a command, showing what it says; stop the demo where it fails."""
    print(f"\n── {' '.join(command)}", flush=True)
    module = ["-m", "legato", *command[1:]] if command[0] == "legato" else list(command[1:])
    done = subprocess.run([sys.executable, *module], cwd=ROOT)
    if done.returncode != 0:
        sys.exit(done.returncode)


def figures(folder: Path, top: Path) -> str:
    """Every picture of a folder, as HTML."""
    found = sorted(p for p in folder.rglob("*") if p.suffix in (".png", ".jpg"))
    return "\n".join(f'<img src="{p.relative_to(top)}" alt="{html.escape(p.stem)}">' for p in found)


def score_table(results: Path) -> str:
    """Test scores of the segmentation, from the file the run wrote."""
    rows = json.loads(results.read_text(encoding="utf-8"))["rows"]
    lines = ["<table><tr><th></th><th>accuracy</th><th>mean IoU</th></tr>"]
    for row in rows.values():
        scores = "".join(f"<td>{row['test'][k]['mean']:.1f} %</td>" for k in ("accuracy", "iou"))
        lines.append(f"<tr><td>{html.escape(row['what'])}</td>{scores}</tr>")
    return "\n".join([*lines, "</table>"])


def main() -> None:
    top = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "out" / "demo").resolve()
    begin = time.perf_counter()
    segment = top / "segment"
    if (top / "index.html").exists() and (segment / "settings.json").exists():
        shutil.rmtree(segment)  # a finished demo's: an unfinished one goes on where it stopped
    run("python", "examples/readme.py", str(top / "readme" / "readme.png"))
    run("legato", "toy", "--quick", "--out", str(top / "toy"))
    run("legato", "segment", "table", "--quick", "--seeds", "0", "--variants", "control,global",
        "--out", str(segment))  # fmt: skip
    run("legato", "segment", "compare", str(segment / "seed-0"), "--count", "5",
        "--out", str(segment / "figures" / "compare.jpg"))  # fmt: skip
    parts = (
        (
            "Weights of a total-variation model, learned",
            "The README's program: one smoothing weight for each direction and tile, learned by "
            "differentiating 100 iterations of a nonsmooth solver.",
            figures(top / "readme", top),
        ),
        (
            "A segmentation layer, trained with its network",
            "The network alone trained on for as long, and the same network with the Potts layer "
            "after it, learned end to end on generated scenes; test images the training never saw.",
            score_table(segment / "results.json") + figures(segment / "figures", top),
        ),
        (
            "The paper's toy example",
            "Six ways to differentiate a non-negative least-squares problem in one variable.",
            figures(top / "toy", top),
        ),
    )
    sections = "\n".join(
        f"<h2>{html.escape(title)}</h2>\n<p>{html.escape(text)}</p>\n{body}"
        for title, text, body in parts
    )
    page = top / "index.html"
    page.write_text(PAGE.format(when=time.strftime("%Y-%m-%d %H:%M"), sections=sections), "utf-8")
    print(f"\nDone in {time.perf_counter() - begin:.0f} s. All pictures on one page: {page}")


if __name__ == "__main__":
    main()

"""Pack the images of a folder with train, BSD68 and Set12 as grey bytes in one file.

python experiments/reconstruct/pack.py FOLDER images.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from legato.studies.denoise.images import read_sets

sets = read_sets(Path(sys.argv[1]))
named = {f"train/{i}": image for i, image in enumerate(sets.train)}
named |= {f"{k}/{i}": image for k, v in sets.tests.items() for i, image in enumerate(v)}
np.savez_compressed(
    sys.argv[2],
    **{key: np.round(255 * image.numpy()).astype("uint8") for key, image in named.items()},
)

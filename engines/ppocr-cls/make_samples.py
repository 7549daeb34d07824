"""Make ``samples.npz``: text lines as PP-OCR's direction classifier sees them, half of them upside down.

Run ``python engines/ppocr-cls/make_samples.py`` (needs Pillow 10.1 or newer with FreeType). The file that it writes
is committed; run it again only to change the samples, since a new digest voids the evidence of earlier builds.

Arrays:
    x: float32 [28, 3, 48, 192], values in [-1, 1]. A line is scaled to height 48 with its aspect kept, mapped by
        ``(pixel / 255 - 0.5) / 0.5``, and padded with 0 on the right to width 192, as the model was trained.
    label: int64 [28], 0 for upright, 1 for turned by 180 degrees. The model's classes; no input has this name, so
        the accuracy check never reads it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEIGHT, WIDTH = 48, 192
SEED = 20240817
CLEAR = 0
FAINT = 1  # low contrast under noise: scores between 0 and 1, where small faults of an engine show
LINES = (
    ("Invoice 2024-117", CLEAR),
    ("TOTAL 1,284.50", CLEAR),
    ("Serial A7K-90213", CLEAR),
    ("Keep refrigerated", CLEAR),
    ("Batch No. 55821", CLEAR),
    ("Quality checked", CLEAR),
    ("Price per kilogram", CLEAR),
    ("Room 417, level 4", CLEAR),
    ("EXIT", CLEAR),
    ("No. 7", CLEAR),
    ("OK", FAINT),
    ("25 kg", FAINT),
    ("12:30", FAINT),
    ("Lot 8", FAINT),
)


def draw(text: str, size: int, ink: int, paper: int, noise: float, random: np.random.Generator) -> Image.Image:
    """Draw one line in grey on grey, cropped to its ink with a margin, with Gaussian noise of ``noise`` grey levels."""
    font = ImageFont.load_default(size=size)
    left, top, right, bottom = (math.floor(edge) for edge in font.getbbox(text))
    margin = int(random.integers(3, 7))
    image = Image.new("L", (right - left + 2 * margin, bottom - top + 2 * margin), paper)
    ImageDraw.Draw(image).text((margin - left, margin - top), text, fill=ink, font=font)
    pixels = np.asarray(image, dtype=np.float64) + random.normal(0.0, noise, (image.height, image.width))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def preprocess(line: Image.Image) -> NDArray[np.float32]:
    """Scale to the model's height, map to [-1, 1], pad with 0 on the right: float32 [3, 48, 192]."""
    width = min(WIDTH, math.ceil(HEIGHT * line.width / line.height))
    grey: NDArray[np.float32] = np.asarray(line.resize((width, HEIGHT), Image.Resampling.BILINEAR), dtype=np.float32)
    grey = (np.round(grey / 4) * 4).astype(np.float32)  # 64 grey levels, so that the file packs well
    padded = np.zeros((3, HEIGHT, WIDTH), dtype=np.float32)
    padded[:, :, :width] = (grey / 255 - 0.5) / 0.5
    return padded


def make() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Every line upright, then turned. The same bytes at every run with the same Pillow and NumPy."""
    random = np.random.default_rng(SEED)
    rows: list[NDArray[np.float32]] = []
    labels: list[int] = []
    for number, (text, kind) in enumerate(LINES):
        if kind == FAINT:
            ink, paper, noise = 98, 158, 12.0
        else:
            ink, paper, noise = int(random.integers(0, 70)), int(random.integers(185, 250)), 3.0 * (number % 2)
        if number % 4 == 0:  # light on dark
            ink, paper = paper, ink
        line = draw(text, int(random.integers(26, 44)), ink, paper, noise, random)
        for turned in (0, 1):
            rows.append(preprocess(line.rotate(180) if turned else line))
            labels.append(turned)
    return np.stack(rows), np.array(labels, dtype=np.int64)


def main() -> None:
    """Write ``samples.npz`` beside this file and say what is in it."""
    path = Path(__file__).with_name("samples.npz")
    x, label = make()
    np.savez_compressed(path, x=x, label=label)
    print(f"{path}: {path.stat().st_size} bytes, x {x.shape}, {int(label.sum())} turned")


if __name__ == "__main__":
    main()

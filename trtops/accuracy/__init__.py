"""Outputs of an engine against the reference's: samples, tolerances, comparison.

Used by ``verify`` and by shadow traffic. It knows sessions and arrays, not who built them.
"""

from __future__ import annotations

from trtops.accuracy.compare import Point, Tally, points, verify
from trtops.accuracy.samples import MAX_SAMPLE_BYTES, Samples, load_samples
from trtops.accuracy.values import AccuracyReport, WorstElement

__all__ = [
    "MAX_SAMPLE_BYTES",
    "AccuracyReport",
    "Point",
    "Samples",
    "Tally",
    "WorstElement",
    "load_samples",
    "points",
    "verify",
]

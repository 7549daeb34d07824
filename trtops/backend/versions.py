"""Versions of backends: what a target asks for, what built an engine, what is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed(*distributions: str) -> str | None:
    """Version of the first of these distributions that is installed; None if none is. Imports nothing."""
    found = (_version(distribution) for distribution in distributions)
    return next((text for text in found if text is not None), None)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def satisfies(have: str, want: str | None) -> bool:
    """Whether a version is the one that is wanted, or one of its series: ``8.6.1`` satisfies ``8.6`` and ``8``."""
    return want is None or have == want or have.startswith(f"{want}.")


def same_series(one: str, other: str) -> bool:
    """Whether two versions agree in ``major.minor``."""
    return one.split(".")[:2] == other.split(".")[:2]

"""TensorRT's log, and what its words mean.

A process has one logger (a second one is ignored), so there is one for each library, and whoever builds or loads
asks it what was said since.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEPT = 200
# ILogger.Severity: 0 internal error, 1 error, 2 warning, 3 info, 4 verbose
ERROR, WARNING, INFO = 1, 2, 3

_LOGGERS: dict[str, Any] = {}


def logger(trt: Any) -> Any:  # noqa: ANN401 - TensorRT has no types
    """The process's logger of a library (the module ``tensorrt`` or ``tensorrt_rtx``).

    It keeps errors in ``errors``, and writes what is at least as severe as ``shown`` to standard error, which is the
    log where a build's child runs.
    """
    if trt.__name__ in _LOGGERS:
        return _LOGGERS[trt.__name__]

    class Logger(trt.ILogger):  # type: ignore[misc]
        """Never raises: an exception in a callback of a native library ends the process."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.shown = WARNING

        def log(self, severity: Any, message: str) -> None:  # noqa: ANN401 - an enum of the library
            level = int(severity)
            if level <= ERROR:
                self.errors = [*self.errors[1 - _KEPT :], message]
            if level <= self.shown:
                sys.stderr.write(f"[{getattr(severity, 'name', level)}] {message}\n")

    return _LOGGERS.setdefault(trt.__name__, Logger())


# What TensorRT says -> what happened, what to do. `{…}` are groups of the expression. The first that fits counts.
_MEANINGS: Sequence[tuple[str, str, str]] = (
    (
        r"Plugin not found",
        "TensorRT has no such operator and no plugin of that name",
        "replace the operator in the model, or name its plugin under builder.plugins",
    ),
    (
        r"Failed to convert ONNX da\w+ type",
        "TensorRT has no such element type",
        "cast the tensor to float32, float16, int32, int64 or bool in the model",
    ),
    (
        r"MODEL_DESERIALIZE_FAILED|Failed to parse the ONNX model",
        "the file is no whole ONNX model",
        "export it again, and check it with onnx.checker",
    ),
    (
        r"within workspace limit|[Ii]nsufficient workspace|Could not find any implementation for node (?P<node>\S+)",
        "no kernel for a node fits into the workspace, which also holds activations at the maximum shapes",
        "raise memory.workspace, or lower the maximum shapes of the profiles",
    ),
    (
        r"[Dd]ynamic input tensor (?P<tensor>\S+) is missing dimensions in profile (?P<profile>\d+)",
        "profile {profile} has no shapes for the dynamic input {tensor!r}",
        "add it to the profile",
    ),
    (
        r"no optimization profile has been defined",
        "the model has dynamic inputs and the engine no profile",
        "add a profile with min, opt and max of each dynamic input",
    ),
    (
        r"Input dimensions with this name have different constant values|contradictory IOptimizationProfile",
        "dimensions of the same name get different sizes",
        "give dimensions that differ different names in the model",
    ),
    (
        r"(?i)out ?of ?memory|cudaError 2\b|Requested amount of GPU memory",
        "the GPU has not enough free memory",
        "free memory on the device, or lower memory.workspace and the maximum shapes",
    ),
    (
        r"CUDA driver version is insufficient|no CUDA-capable device|CUDA initialization failure|cudaError 35\b",
        "there is no GPU that TensorRT can use",
        "run this on a machine with a GPU and its driver",
    ),
    (
        r"Cuda (?:Runtime|Driver) \((?P<reason>[^()]+)\)",
        "the GPU failed: {reason}",
        "look at it (nvidia-smi; Xid in the kernel's log), and try again",
    ),
    (
        r"(?i)not compatible with this version of TensorRT|Version tag does not match|serialization version",
        "the engine was written by another version of TensorRT",
        "load it with the version that built it, or build it again",
    ),
    (
        r"(?i)generated on an incompatible device|different models of devices|compute capability .* mismatch",
        "the engine was built for another GPU",
        "build it for this one",
    ),
)


def meaning(said: Sequence[str]) -> tuple[str, str | None]:
    """Put TensorRT's errors in plain words.

    Args:
        said: error messages, oldest first.

    Returns:
        what happened, and what to do (None: not known); TensorRT's own last error where none is known.
    """
    return known_meaning(said) or (trimmed(said[-1]) if said else "TensorRT gave no reason", None)


def known_meaning(said: Sequence[str]) -> tuple[str, str] | None:
    """What the first error that is known means, and what to do; None if none is known."""
    for message in said:
        for pattern, what, fix in _MEANINGS:
            if match := re.search(pattern, message):
                groups = {name: text or "" for name, text in match.groupdict().items()}
                node = f" (node {groups['node']})" if groups.get("node") else ""
                return f"{_fill(what, groups)}{node}", fix
    return None


def _fill(text: str, groups: dict[str, str]) -> str:
    return text.format(**groups) if groups else text


def trimmed(message: str) -> str:
    """TensorRT's words on one line, without the places in its sources."""
    text = " ".join(message.split())
    text = re.sub(r"^\w+::\w+: Error Code \d+: ", "", text)
    return re.sub(r"\s*\(?In \w+ at \S+:\d+\)*$", "", text).strip()

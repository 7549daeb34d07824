"""Memory formats of engines' inputs and outputs, as a catalogue names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from trtops.tensor import MEMORY_FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trtops.tensor import MemoryFormat

_KEY: Final = "format"
_MARK: Final = b'"format"'
_SIDES: Final = ("inputs", "outputs")


def formats_of(engines: Iterable[Any]) -> dict[str, dict[str, MemoryFormat]]:
    """Engine -> input -> its format, of those that are not linear.

    What is not written as an executor of ours writes it is left out: whoever does not know a format writes linear
    tensors, which every engine takes.

    Args:
        engines: of a catalogue, decoded.
    """
    found: dict[str, dict[str, MemoryFormat]] = {}
    for engine in engines:
        if isinstance(engine, dict) and (inputs := known(_named(engine.get("inputs")))):
            found[str(engine.get("name"))] = inputs
    return found


def _named(tensors: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON of the handler
    listed = tensors if isinstance(tensors, list) else []
    return {str(one.get("name")): one[_KEY] for one in listed if isinstance(one, dict) and _KEY in one}


def known(formats: Mapping[str, Any]) -> dict[str, MemoryFormat]:
    """Those of them that this version knows, and that are not linear."""
    return {
        name: cast("MemoryFormat", one) for name, one in formats.items() if one in MEMORY_FORMATS and one != "linear"
    }


def formats_in(engines: bytes) -> dict[str, dict[str, MemoryFormat]]:
    """The same of a catalogue's JSON, which is looked into only where it names formats."""
    return formats_of(msgspec.json.decode(engines)) if _MARK in engines else {}


def without_formats(engines: bytes) -> bytes:
    """A catalogue's JSON for clients that know no formats; the same object where it names none."""
    if _MARK not in engines:
        return engines
    document = msgspec.json.decode(engines)
    for engine in document:
        for tensor in (tensor for side in _SIDES for tensor in engine.get(side, ())):
            tensor.pop(_KEY, None)
    return msgspec.json.encode(document)

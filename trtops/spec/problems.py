"""From pydantic's errors to problems that a person can act on: where, what was found, what is allowed."""

from __future__ import annotations

import difflib
import types
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from trtops.document import describe
from trtops.errors import Location, Problem
from trtops.spec.engine import PATTERNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Protocol

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    class Source(Protocol):
        """What knows where values stand: a document, or a base with an overlay."""

        @property
        def data(self) -> Mapping[str, Any]:
            """The values."""

        def locate(self, path: Sequence[str | int]) -> Location:
            """Position of a value."""

        def locate_key(self, path: Sequence[str | int]) -> Location:
            """Position of a key."""

        def raw(self, path: Sequence[str | int]) -> str | None:
            """A scalar's text."""


Path = tuple[str | int, ...]

_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number, without quotes",
    "int_from_float": "a whole number",
    "float_type": "a number, without quotes",
    "string_type": "text",
    "tuple_type": "a list, such as [1, 2]",
    "list_type": "a list, such as [1, 2]",
    "dict_type": "a mapping of `key: value`",
    "model_type": "a mapping of `key: value`",
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
_SECRET_WORDS = ("password", "passwd", "secret", "token", "credential", "private_key")


def closest(word: str, choices: Iterable[str]) -> list[str]:
    """All choices, the one most like ``word`` first; letter case, dashes and underscores do not matter."""

    def likeness(choice: str) -> tuple[float, str]:
        return -difflib.SequenceMatcher(None, _folded(word), _folded(choice)).ratio(), choice

    return sorted(choices, key=likeness)


def suggestion(word: str, choices: Iterable[str]) -> str | None:
    """The choice that was most likely meant, if one is near enough."""
    ordered = closest(word, choices)
    if not ordered:
        return None
    near = difflib.SequenceMatcher(None, _folded(word), _folded(ordered[0])).ratio()
    return ordered[0] if near >= _NEAR else None


_NEAR = 0.6


def _folded(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")


def problems_of(error: ValidationError, model: type[BaseModel], source: Source) -> list[Problem]:
    """Translate every error, one problem for each place.

    Args:
        error: what validation of ``source.data`` against ``model`` raised.
        model: the document's model.
        source: the document.
    """
    found: dict[tuple[Path, str], Problem] = {}
    for detail in error.errors(include_url=False):
        path = _existing(detail["loc"], source.data)
        if detail["type"] in {"too_short", "too_long"} and not _really(detail, source.data, path):
            continue
        key = (path, _kind(detail))
        # A union reports each of its members, at one place: say it once, with what all of them allow.
        problem = _problem(detail, path, model, source)
        if key in found and len(detail["loc"]) > len(path):
            earlier = found[key].fix or ""
            allowed = (problem.fix or "").removeprefix("write ")
            fix = earlier if allowed in earlier else f"{earlier}, or {allowed}"
            problem = Problem(problem.code, problem.message, problem.location, fix)
        found[key] = problem
    return list(found.values())


def _kind(detail: ErrorDetails) -> str:
    kind = detail["type"]
    name = f"{kind}:{detail['loc'][-1]}"
    return "type" if kind in _EXPECTED else name if kind in {"missing", "extra_forbidden"} else kind


def _existing(loc: tuple[int | str, ...], data: Any) -> Path:  # noqa: ANN401 - any YAML value
    """The part of pydantic's location that the document has (union members and ``[key]`` are pydantic's own words)."""
    path: list[str | int] = []
    for segment in loc:
        if isinstance(data, dict) and segment in data:
            data = data[str(segment)]
        elif isinstance(data, list) and isinstance(segment, int) and segment < len(data):
            data = data[segment]
        else:
            break
        path.append(segment)
    return tuple(path)


def _value(data: Any, path: Path) -> Any:  # noqa: ANN401 - any YAML value
    for segment in path:
        data = data[segment]
    return data


def _really(detail: ErrorDetails, data: Any, path: Path) -> bool:  # noqa: ANN401 - any YAML value
    """Tell a list that is too short from one whose elements are wrong (pydantic counts only the right ones)."""
    value = _value(data, path)
    length = len(value) if isinstance(value, list | dict | str) else 0
    context = detail.get("ctx", {})
    return bool(length < context.get("min_length", 0) or length > context.get("max_length", length))


def _problem(detail: ErrorDetails, path: Path, model: type[BaseModel], source: Source) -> Problem:
    kind = detail["type"]
    context = detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path, model, source)
    if kind == "missing":
        missing = str(detail["loc"][-1])
        where = _dotted(path)
        message = f"the key `{missing}` is missing" + (f" in `{where}`" if where else "")
        return Problem(
            "spec.missing-key", message, source.locate(path), f"add `{missing}:`{_about(model, detail['loc'])}"
        )
    value = _value(source.data, path)
    here = source.locate(path)
    if kind == "value_error":
        said = str(context.get("error", detail["msg"]))
        message, _, fix = said.partition(": write ")
        message = f"`{_dotted(path)}`: {message}"
        return Problem("spec.value", message, here, f"write {fix}" if fix else "see `trtops schema`")
    found = f"`{_dotted(path)}` is {_shown(value, path)}"
    if kind == "literal_error":
        return _choice(detail, path, found, source)
    if kind in _EXPECTED:
        return Problem("spec.type", found, here, _type_fix(kind, value, path, source))
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return Problem("spec.range", found, here, f"write a number that is {words} {context[name]}")
    if kind == "string_pattern_mismatch":
        return Problem("spec.format", found, here, f"write {PATTERNS.get(context['pattern'], context['pattern'])}")
    if kind in {"too_short", "string_too_short"}:
        return Problem("spec.too-short", found, here, f"give at least {context['min_length']}")
    if kind in {"too_long", "string_too_long"}:
        return Problem("spec.too-long", found, here, f"give at most {context['max_length']}")
    return Problem("spec.value", f"{found}: {detail['msg']}", here, "see `trtops schema`")


def _type_fix(kind: str, value: object, path: Path, source: Source) -> str:
    if kind == "string_type" and isinstance(value, int | float | bool):
        raw = source.raw(path)
        return f'quote it, so that it is text: "{raw if raw is not None else value}"'
    if kind in {"model_type", "dict_type"} and value is None:
        return "write its keys below it, or remove it"
    return f"write {_EXPECTED[kind]}"


def _choice(detail: ErrorDetails, path: Path, found: str, source: Source) -> Problem:
    expected = str(detail.get("ctx", {}).get("expected", ""))
    choices = [part for part in expected.replace("' or '", "', '").strip("'").split("', '") if part]
    value = detail["input"]
    is_key = detail["loc"][-1] == "[key]"
    where = source.locate_key(path) if is_key else source.locate(path)
    ordered = closest(str(value), choices)
    listed = ", ".join(ordered)
    fix = f"write {listed}" if len(ordered) == 1 else f"write one of: {listed}"
    if is_key:
        return Problem("spec.unknown-key", f"unknown key `{_dotted(path)}`", where, fix)
    return Problem("spec.choice", found, where, fix)


def _unknown_key(path: Path, model: type[BaseModel], source: Source) -> Problem:
    key, parent = str(path[-1]), path[:-1]
    allowed = _fields(model, parent)
    meant = suggestion(key, allowed)
    if meant:
        fix = f"did you mean `{meant}`? Allowed here: {', '.join(closest(key, allowed))}"
    else:
        elsewhere = [place for place in _places(model) if place.split(".")[-1] == key]
        hint = f"it belongs at `{elsewhere[0]}`; " if elsewhere else "remove it; "
        fix = f"{hint}allowed here: {', '.join(allowed)}"
    where = f" in `{_dotted(parent)}`" if parent else ""
    return Problem("spec.unknown-key", f"unknown key `{key}`{where}", source.locate_key(path), fix)


def _shown(value: object, path: Path) -> str:
    """Describe a value, but never one that may be secret."""
    words = [str(segment).lower() for segment in path]
    if any(secret in word for word in words for secret in _SECRET_WORDS):
        return "of another type" if not isinstance(value, str) else "text that is not shown"
    return describe(value)


def _dotted(path: Path) -> str:
    """Write a path as people do: ``profiles[0].inputs.x.min``."""
    text = ""
    for segment in path:
        text += f"[{segment}]" if isinstance(segment, int) else f".{segment}" if text else segment
    return text


def _models(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 - any annotation
    """Annotations inside optional, annotated and union types."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _models(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _models(part)
    else:
        yield annotation


def _is_model(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    """Whether an annotation is a model (on CPython 3.10, ``tuple[int]`` passes for a class)."""
    return get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _step(annotation: Any, segment: str | int) -> Any:  # noqa: ANN401 - any annotation
    """The annotation of what stands at a key or an index."""
    for part in _models(annotation):
        if _is_model(part):
            field = part.model_fields.get(str(segment))
            return field.annotation if field else None
        arguments = get_args(part)
        if get_origin(part) is dict:
            return arguments[1]
        if get_origin(part) is tuple:
            return arguments[0]
    return None


def _fields(model: type[BaseModel], path: Path) -> list[str]:
    annotation: Any = model
    for segment in path:
        annotation = _step(annotation, segment)
    for part in _models(annotation):
        if _is_model(part):
            return list(part.model_fields)
    return []


def _places(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of a document, dotted."""
    for name, field in model.model_fields.items():
        place = f"{prefix}{name}"
        yield place
        for part in _models(field.annotation):
            inner = get_args(part)[-1] if get_origin(part) is dict else (get_args(part) or (part,))[0]
            for nested in _models(inner):
                if _is_model(nested):
                    yield from _places(nested, f"{place}.")


def _about(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """What a key that is missing holds, where its type has one value or a description of its form."""
    annotation: Any = model
    for segment in loc[:-1]:
        annotation = _step(annotation, segment)
    for part in _models(annotation):
        if _is_model(part):
            field = part.model_fields[str(loc[-1])]
            choices = [str(choice) for choice in get_args(field.annotation) if isinstance(choice, str)]
            if choices:
                return f" with one of: {', '.join(choices)}" if len(choices) > 1 else f" {choices[0]}"
            for constraint in field.metadata:
                words = PATTERNS.get(getattr(constraint, "pattern", None) or "")
                if words:
                    return f" with {words}"
    return ""

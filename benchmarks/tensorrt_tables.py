# ruff: noqa: RUF001, E501 - tables for people, in their own signs and as wide as they are
"""The results of ``tensorrt_h200.py`` as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = dict[str, Any]

_BUILDER = "build the engine"
_NONE: Row = {"seconds": None, "phases": {}}


_FIGURES = {"first", "again", "accuracy", "points"}


def merged(files: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Results of several files as one: a later row replaces one of its name, unless it has fewer of the figures."""
    found: dict[str, Any] = {"rows": {}}
    for results in files:
        rows = found["rows"]
        for name, row in results["rows"].items():
            if len(_FIGURES & row.keys()) >= len(_FIGURES & rows.get(name, {}).keys()):
                rows[name] = row
        found |= {name: value for name, value in results.items() if name != "rows"}
    return found


def tables(results: dict[str, Any]) -> str:
    """All tables of a results file."""
    about = results["machine"]
    rows = list(results["rows"].values())
    good = [row for row in rows if "first" in row]
    cores = f", {about['cores']} cores" if about["cores"] else ""
    head = (
        f"# TensorRT on a GPU\n\n{about['device']}, driver {about['driver']}, {about['backend']} {about['version']}, "
        f"CPython {about['python']}{cores}. Printed by `benchmarks/tensorrt_h200.py table`; latencies in µs, one "
        "caller, closed loop, copies in and out counted. `level` is `builder.optimization_level`.\n"
    )
    parts = [head, _builds(good), _warm(good), _accuracy(good), _latency(good), _parts(good), _shapes(good)]
    parts += [_said(good), _failed(rows)]
    if notes := results.get("notes"):
        parts.append("\n".join(["## What these figures are", "", *(f"- {note}" for note in notes)]) + "\n")
    return "\n".join(part for part in parts if part)


def _table(title: str, words: str, columns: list[str], lines: list[list[str]]) -> str:
    if not lines:
        return ""
    head = [f"## {title}", "", words, "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"


def _label(row: Row) -> list[str]:
    return [row["model"], row["mode"], row["shapes"], str(row["level"])]


_LABELS = ["model", "precision", "shapes", "level"]


def _ratio(one: float | None, two: float | None) -> str:
    return f"{one / two:.1f}" if one and two else "-"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _builds(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        one, two = (row.get(name) or _NONE for name in ("first", "again"))
        ours, theirs = (build["phases"].get(_BUILDER) for build in (one, two))
        seconds = (one["seconds"], two["seconds"], ours, theirs)
        lines.append(
            [
                *_label(row),
                str(row["at_once"]),
                *map(_seconds, seconds),
                _ratio(one["seconds"], two["seconds"]),
                _ratio(ours, theirs),
                f"{row['size_bytes'] / (1 << 20):.1f}",
            ]
        )
    columns = [*_LABELS, "builds at once", "first s", "again s", "builder s"]
    columns += ["builder again s", "×", "builder ×", "engine MiB"]
    words = (
        "`first`: with no timings; `again`: with those of the first. Both are a whole build, the start of its process "
        "included; `builder` is TensorRT's own part of it (`build_serialized_network`)."
    )
    return _table("Build", words, columns, lines) + "\n" + _phases(rows)


def _phases(rows: list[Row]) -> str:
    """What every part of a first and of a second build took."""
    lines = []
    names: list[str] = []
    timed = [row for row in rows if row["first"]["phases"]]
    for row in timed:
        names += [name for name in row["first"]["phases"] if name not in names]
    for row in timed:
        for build in ("first", "again"):
            phases = (row.get(build) or _NONE)["phases"]
            lines.append([*_label(row), build, *(_seconds(phases.get(name)) for name in names)])
    words = (
        "Seconds. `library`: importing TensorRT, plugins, CUDA; `start the builder`: `trt.Builder`, which loads its "
        "kernels; `model`: repairs and conversion into the precision."
    )
    return _table("Phases of the builds", words, [*_LABELS, "build", *names], lines)


def _warm(rows: list[Row]) -> str:
    """Two builds in one process."""
    lines = []
    for row in rows:
        for number, build in enumerate(row.get("warm", ()), start=1):
            phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in build["phases"].items())
            lines.append([*_label(row), str(number), _seconds(build["seconds"]), phases])
    words = "Two builds in one process, both with the timings of the first build: what a builder that stays would save."
    return _table("A builder that stays", words, [*_LABELS, "build", "s", "of which"], lines)


def _accuracy(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        if (found := row.get("accuracy")) is None:
            continue
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in found["metrics"].items()) or "-"
        tolerance = f"{found['atol']:g} + {found['rtol']:.0%}"
        outside = f"{found['outside']} of {found['elements']}"
        passed = "yes" if found["passed"] else "no"
        lines.append([*_label(row), f"{float(found['max_abs']):.2g}", tolerance, outside, metrics, passed])
    columns = [*_LABELS, "largest error", "tolerance", "outside", "metric", "passes `verify`"]
    words = "Against ONNX Runtime with its optimisations off, at min, opt and max of every profile. `harsh` is INT8 with ranges that leave half of what was seen outside: `verify` has to refuse it."
    return _table("Accuracy", words, columns, lines)


def _points(rows: list[Row]) -> list[tuple[Row, dict[str, Any]]]:
    return [(row, point) for row in rows for point in row.get("points", {}).values()]


def _latency(rows: list[Row]) -> str:
    lines = []
    for row, point in _points(rows):
        graph, over = point.get("graph"), point.get("overhead")
        lines.append(
            [
                *_label(row),
                "×".join(map(str, point["shape"])),
                *(f"{point[name]:.0f}" for name in ("p50", "p99")),
                f"{point['stddev']:.1f}",
                f"{point['rows_a_second']:.0f}",
                *([f"{graph[name]:.0f}" for name in ("p50", "p99")] if graph else ["-", "-"]),
                f"{graph['stddev']:.1f}" if graph else "-",
                f"{over['ratio']:.3f} ({over['ratio_low']:.3f}–{over['ratio_high']:.3f})" if over else "-",
            ]
        )
    columns = [
        *_LABELS,
        "input",
        "p50",
        "p99",
        "σ",
        "rows/s",
        "graph p50",
        "graph p99",
        "graph σ",
    ]
    columns.append("adapter / bare script (10–90 %)")
    words = "`Session.run`, enqueued and as a CUDA graph (`execution.cuda_graphs`; captured at the optimum of a profile for each batch size). The last column: the same engine and context run by a bare script, interleaved."
    return _table("Latency", words, columns, lines)


def _parts(rows: list[Row]) -> str:
    lines = []
    for row, point in _points(rows):
        if (parts := point.get("parts")) is None:
            continue
        rates = {int(count): rate for count, rate in parts["streams"].items()}
        gains = [f"{rates[count] / rates[1]:.2f}" if count in rates and 1 in rates else "-" for count in (2, 4)]
        names = ("copy_in", "compute", "copy_out", "enqueue", "plain", "graph", "pageable", "pinned", "mapped")
        times = ["-" if parts[name] is None else f"{parts[name]:.0f}" for name in names]
        lines.append([*_label(row), "×".join(map(str, point["shape"])), *times, *gains])
    columns = [*_LABELS, "input", "copy in", "compute", "copy out", "enqueue", "execute", "graph"]
    columns += ["pageable", "pinned", "mapped", "2 streams ×", "4 streams ×"]
    words = "Copies and `compute` are between CUDA events. `enqueue` is the host's part of `execute` (enqueue and wait), `graph` launches a graph of it and waits. `pageable`, `pinned`, `mapped`: the input from such memory, then execute. Streams: rows a second against one."
    return _table("Where the time goes", words, columns, lines)


def _shapes(rows: list[Row]) -> str:
    """The same batch by kernels for one shape, for a range of shapes, and by the tightest of three profiles."""
    found: dict[tuple[str, int, str], dict[str, dict[str, Any]]] = {}
    for row, point in _points(rows):
        if row["mode"] == "fp32":
            key = row["model"], row["level"], "×".join(map(str, point["shape"]))
            found.setdefault(key, {})[row["shapes"]] = point
    lines = []
    for (model, level, shape), kinds in found.items():
        if len(kinds) < 2 or "dynamic" not in kinds:
            continue
        cells = []
        for kind in ("dynamic", "static", "profiles"):
            one = kinds.get(kind)
            cells += [f"{one['p50']:.0f}", f"{one['parts']['compute']:.0f}"] if one and "parts" in one else ["-", "-"]
        lines.append([model, str(level), shape, *cells])
    columns = [
        "model",
        "level",
        "input",
        "one profile p50",
        "compute",
        "static p50",
        "compute",
        "tightest of three p50",
        "compute",
    ]
    words = "FP32 kernels built for a range of shapes, for one shape alone, and for the tightest of three named profiles (one row; 2 to 8; 9 to 32)."
    return _table("Static and dynamic shapes", words, columns, lines)


def _said(rows: list[Row]) -> str:
    said = [
        f"- {row['model']} {row['mode']} {row['shapes']} at level {row['level']}, {text}"
        for row, point in _points(rows)
        for text in point.get("advice", ())
    ]
    return "\n".join(["## What `trtops bench` says of them", "", *said]) + "\n" if said else ""


def _failed(rows: list[Row]) -> str:
    lines = [
        f"- {row['name']}: {step}: {' '.join(reason[:500].split())}"
        for row in rows
        for step, reason in row.get("failed", {}).items()
    ]
    return "\n".join(["## Not built or not measured", "", *lines]) + "\n" if lines else ""

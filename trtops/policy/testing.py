"""``trtops policy test``: the ``*_test.rego`` files, with coverage, in the embedded engine and in OPA.

A rule with no test, a test file with no test, and a line of a rule that no test reaches are failures.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trtops.errors import Undecided
from trtops.policy.native import NativeEngine
from trtops.policy.syntax import Module, RegorusPanic, from_regorus, panics, parse, rule_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from trtops.errors import Location
    from trtops.policy.port import PolicyFile, PolicySet

Outcome = Literal["passed", "failed", "error"]

_TEST = re.compile(r"(todo_)?test_\w+")
_TIMEOUT = 300


@dataclass(frozen=True, slots=True)
class Case:
    """One test.

    Attributes:
        rule: id of the rule or library.
        name: of the test; empty where the rule has none.
        outcome: ``error`` where it could not be run.
        location: its line.
        message: why it did not pass; empty if it did.
    """

    rule: str
    name: str
    outcome: Outcome
    location: Location
    message: str = ""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Lines of a file: how many can be reached, and which no test reached."""

    rule: str
    file: str
    lines: int
    missed: tuple[int, ...]

    @property
    def percent(self) -> float:
        """Share of the lines that were reached, in percent; 100 for a file that has none."""
        return 100.0 * (self.lines - len(self.missed)) / self.lines if self.lines else 100.0


@dataclass(frozen=True, slots=True)
class Report:
    """What the tests of a policy set said in one engine."""

    engine: str
    cases: tuple[Case, ...]
    coverage: tuple[Coverage, ...]

    @property
    def passed(self) -> bool:
        """Whether every test passed, there are some, and every line of the rules was reached."""
        good = all(case.outcome == "passed" for case in self.cases)
        return bool(self.cases) and good and not any(entry.missed for entry in self.coverage)


@dataclass(frozen=True, slots=True)
class _Unit:
    """A rule or library with its test."""

    rule: str
    file: PolicyFile
    test: PolicyFile | None


def _units(policies: PolicySet, only: Collection[str] | None) -> list[_Unit]:
    tests = {test.path: test for test in policies.library_tests}
    libraries = [_Unit(rule_of(file), file, tests.get(_test_path(file.path))) for file in policies.libraries]
    rules = [_Unit(rule.id, rule.file, rule.test) for rule in policies.rules]
    if only is None:
        return [*libraries, *rules]
    known = {unit.rule for unit in (*libraries, *rules)}
    for rule in only:
        if rule not in known:
            raise Undecided(f"unknown rule {rule!r}", where=policies.origin, fix=f"known: {', '.join(sorted(known))}")
    return [unit for unit in (*libraries, *rules) if unit.rule in only]


def _test_path(path: str) -> str:
    return f"{path.removesuffix('.rego')}_test.rego"


def _needs_test(unit: _Unit) -> bool:
    """A library may be tested by the rules that use it; its lines have to be reached all the same."""
    return not unit.rule.startswith("lib.")


def _sorted(cases: Iterable[Case]) -> tuple[Case, ...]:
    return tuple(sorted(cases, key=lambda case: (case.location.file, case.location.line, case.name)))


def _missing(units: Iterable[_Unit]) -> Iterator[Case]:
    for unit in units:
        if unit.test is None and _needs_test(unit):
            yield Case(unit.rule, "", "error", unit.file.at(1), "the rule has no rule_test.rego")


def run_embedded(policies: PolicySet, *, only: Collection[str] | None = None) -> Report:
    """Run the tests in regorus.

    Args:
        policies: what is tested.
        only: ids of rules and libraries; None: all. Lines of libraries are looked at only if all tests run, or if the
            library is named.

    Raises:
        Undecided: a file is no Rego v1, or a rule is unknown.
    """
    units = _units(policies, only)
    tests = [unit.test for unit in units if unit.test is not None]
    files = {file.path: file for file in (*policies.libraries, *(unit.file for unit in units), *tests)}
    modules = parse(list(files.values()))
    engine = NativeEngine()
    for module in modules:
        engine.add_policy(module.file.path, module.expanded())
    engine.add_data_json(json.dumps(dict(policies.data), allow_nan=False))
    engine.enable_coverage()
    cases = list(_missing(units))
    tested = {test.path for test in tests}
    for module in modules:
        if module.file.path in tested:
            cases += _run_module(engine, module, files)
    covered = json.loads(engine.get_coverage_report_as_json()).get("files", [])
    reached = {entry["path"]: (set(entry["covered"]), set(entry["not_covered"])) for entry in covered}
    coverage = tuple(_coverage(unit, *reached.get(unit.file.path, (set(), set()))) for unit in units)
    return Report("embedded", _sorted(cases), coverage)


def _coverage(unit: _Unit, hit: set[int], missed: set[int]) -> Coverage:
    left = tuple(sorted(missed - hit))
    return Coverage(unit.rule, unit.file.label, len(hit | missed), left)


def _run_module(engine: NativeEngine, module: Module, files: Mapping[str, PolicyFile]) -> list[Case]:
    rule = rule_of(module.file)
    heads = {head.name: head for head in module.heads if _TEST.fullmatch(head.name)}
    if not heads:
        return [Case(rule, "", "error", module.file.at(1), "the file has no rule whose name begins with test_")]
    return [_run(engine, module, name, module.at(head.offset), files) for name, head in heads.items()]


def _run(engine: NativeEngine, module: Module, name: str, where: Location, files: Mapping[str, PolicyFile]) -> Case:
    rule = rule_of(module.file)
    if name.startswith("todo_"):
        return Case(rule, name, "failed", where, "it is marked as to be done")
    try:
        with panics():
            answer = json.loads(engine.eval_rule_as_json(f"data.{module.package}.{name}"))
    except RegorusPanic as panic:
        return Case(rule, name, "error", where, f"regorus broke down: {panic}")
    except RuntimeError as error:
        told = from_regorus(error, files, "it raised")
        return Case(rule, name, "error", where, f"{told.what} ({told.where})" if told.where else told.what)
    if answer is True:
        return Case(rule, name, "passed", where)
    shown = "undefined" if answer == "<undefined>" else json.dumps(answer)
    return Case(rule, name, "failed", where, f"it is {shown}, not true")


def run_opa(policies: PolicySet, binary: Path, *, only: Collection[str] | None = None) -> Report:
    """Run the tests by ``opa test``.

    Args:
        policies: what is tested.
        binary: the ``opa`` program.
        only: as :func:`run_embedded`.

    Raises:
        Undecided: OPA cannot be run, or a file does not compile (named with its line).
    """
    units = _units(policies, only)
    tests = [unit.test for unit in units if unit.test is not None]
    files = {file.path: file for file in (*policies.libraries, *(unit.file for unit in units), *tests)}
    with tempfile.TemporaryDirectory(prefix="trtops-test-") as folder:
        for path, file in files.items():
            target = Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(file.text, encoding="utf-8")
        (Path(folder) / "data.json").write_text(json.dumps(dict(policies.data)), encoding="utf-8")
        results = _opa(binary, folder, files, "--format=json")
        passed = all(not entry.get("fail") and not entry.get("error") for entry in results or ())
        covered = _opa(binary, folder, files, "--format=json", "--coverage") if passed else {}
    cases = [*_missing(units), *_cases(results or (), files, tests)]
    lines = (covered or {}).get("files", {}) if isinstance(covered, dict) else {}
    coverage = tuple(_covered(unit, lines.get(unit.file.path, {})) for unit in units) if lines else ()
    return Report("opa", _sorted(cases), coverage)


def _opa(binary: Path, folder: str, files: Mapping[str, PolicyFile], *options: str) -> Any:  # noqa: ANN401 - any JSON value
    from trtops.policy.opa import describe

    command = [str(binary), "test", *options, "data.json", "policies"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Undecided(f"opa test cannot be run: {error}", where=str(binary), fix="install OPA 1.x") from error
    try:
        return json.loads(done.stdout or b"[]") if done.returncode in (0, 2) else _raise(done, binary)
    except ValueError:
        text = (done.stderr + done.stdout).decode("utf-8", "replace")
        match = re.search(r"(policies/[^\s:]+):(\d+): ([^\n]*)", text)
        told = describe(files, match[1], int(match[2]), 0, match[3]) if match else None
        raise told or Undecided(
            f"opa test failed: {text.strip()[:300]}", where=str(binary), fix="is it OPA 1.x?"
        ) from None


def _raise(done: subprocess.CompletedProcess[bytes], binary: Path) -> Any:  # noqa: ANN401 - never returns
    raise ValueError(done.returncode, str(binary))


def _cases(
    results: Iterable[Mapping[str, Any]], files: Mapping[str, PolicyFile], tests: list[PolicyFile]
) -> Iterator[Case]:
    seen: set[str] = set()
    for entry in results:
        location = entry.get("location") or {}
        file = files.get(str(location.get("file")))
        if file is None:
            continue
        seen.add(file.path)
        where = file.at(int(location.get("row", 1)), int(location.get("col", 0)))
        outcome, message = _outcome(entry)
        yield Case(rule_of(file), str(entry.get("name")), outcome, where, message)
    for test in tests:
        if test.path not in seen:
            yield Case(rule_of(test), "", "error", test.at(1), "the file has no rule whose name begins with test_")


def _outcome(entry: Mapping[str, Any]) -> tuple[Outcome, str]:
    error = entry.get("error")
    if error:
        return "error", str(error.get("message") if isinstance(error, dict) else error)
    if entry.get("skip"):
        return "failed", "it is marked as to be done"
    return ("failed", "it is not true") if entry.get("fail") else ("passed", "")


def _covered(unit: _Unit, entry: Mapping[str, Any]) -> Coverage:
    def rows(kind: str) -> set[int]:
        ranges = entry.get(kind) or ()
        return {row for part in ranges for row in range(part["start"]["row"], part["end"]["row"] + 1)}

    hit = rows("covered")
    return _coverage(unit, hit, rows("not_covered"))

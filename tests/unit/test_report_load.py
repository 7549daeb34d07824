"""trtops top: quantiles and rates from two scrapes, and the command against a real server's metrics."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from tests.support.serving import FakeEngines, add_up, exchange, info, post, request_json, serving
from trtops.cli.main import app
from trtops.errors import Unavailable
from trtops.report import load
from trtops.serve.measure import SECONDS, Histogram
from trtops.workflow import top

if TYPE_CHECKING:
    from collections.abc import Iterator


def buckets(values: list[float]) -> dict[float, float]:
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.observe(value)
    return {float(bound): count for bound, count in histogram.cumulative()}


@given(st.lists(st.floats(0.0, 9.9), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_value_that_it_stands_for(values: list[float], q: float) -> None:
    exact = sorted(values)[max(0, math.ceil(q * len(values) - 1e-9) - 1)]
    upper = next(bound for bound in SECONDS if exact <= bound)
    lower = max([0.0, *(bound for bound in SECONDS if bound < upper)])
    assert lower - 1e-12 <= load.quantile(buckets(values), q) <= upper + 1e-12


def test_quantiles_without_values_and_beyond_the_last_bound() -> None:
    assert math.isnan(load.quantile({}, 0.5))
    assert math.isnan(load.quantile(buckets([]), 0.5))
    assert load.quantile(buckets([100.0]), 0.5) == SECONDS[-1]


def scrape(good: int, bad: int, batches: int) -> load.Scrape:
    lines = [
        f'trtops_request_duration_seconds_count{{channel="stable",code="200",engine="cls"}} {good}',
        f'trtops_request_duration_seconds_bucket{{channel="stable",code="200",engine="cls",le="0.01"}} {good}',
        f'trtops_request_duration_seconds_bucket{{channel="stable",code="200",engine="cls",le="+Inf"}} {good}',
        f'trtops_request_duration_seconds_count{{channel="stable",code="429",engine="cls"}} {bad}',
        f'trtops_batches_total{{engine="cls",reason="full"}} {batches}',
        f'trtops_batch_rows_count{{engine="cls"}} {batches}',
        f'trtops_batch_rows_sum{{engine="cls"}} {batches * 16}',
        f'trtops_batch_compute_seconds_sum{{engine="cls"}} {batches * 0.005}',
        'trtops_engine_generation{engine="cls"} 7',
        'trtops_queue_depth{engine="cls"} 3',
        'trtops_requests_in_flight{engine="cls"} 21',
    ]
    return load.parse("\n".join(lines) + "\n")


def test_rates_are_growth_by_time_and_a_restart_counts_from_nothing() -> None:
    (one,) = load.loads(scrape(100, 5, 10), scrape(300, 6, 20), 2.0)
    assert (one.rps, one.errors, one.rows, one.queued, one.in_flight, one.generation) == (100.0, 0.5, 16.0, 3, 21, 7)
    assert (one.busy, one.released) == (pytest.approx(0.025), "full")
    assert one.p50 == pytest.approx(5.0)
    (one,) = load.loads(scrape(100, 5, 10), scrape(40, 0, 4), 2.0)
    assert (one.rps, one.errors) == (20.0, 0.0)
    (one,) = load.loads(scrape(1, 0, 1), scrape(1, 0, 1), 2.0)
    assert (one.rps, one.released) == (0.0, "")
    assert json.loads(load.as_json((one,)))["engines"][0]["p99"] is None
    assert load.plain((one,)).splitlines()[1].split() == [
        "cls",
        "7",
        "0.0",
        "-",
        "-",
        "21",
        "3",
        "-",
        "-",
        "0",
        "%",
        "0.0",
    ]


@pytest.fixture
def control() -> Iterator[str]:
    engines = FakeEngines()
    engines.add(info(), add_up)
    with serving(engines) as served:
        exchange(served, post("/v2/models/sum/infer", request_json()))
        yield f"http://127.0.0.1:{served.control}"


@pytest.mark.service
def test_the_command_prints_one_table_and_json(control: str) -> None:
    result = CliRunner().invoke(app, ["top", "--once", "--url", control, "--interval", "0.1"])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].split()[:3] == ["ENGINE", "GEN", "REQ/S"]
    assert result.stdout.splitlines()[1].startswith("sum")
    result = CliRunner().invoke(app, ["top", "--json", "--url", control, "--interval", "0.1"])
    assert [engine["engine"] for engine in json.loads(result.stdout)["engines"]] == ["sum"]


@pytest.mark.service
@pytest.mark.parametrize("port", ["data", "nobody"])
def test_the_command_says_what_to_do_when_there_are_no_metrics(port: str) -> None:
    engines = FakeEngines()
    with serving(engines) as served:
        url = f"http://127.0.0.1:{served.port if port == 'data' else 1}"
        result = CliRunner().invoke(app, ["top", "--once", "--url", url, "--interval", "0.1"])
        assert result.exit_code == 2
        assert "Traceback" not in result.output


@pytest.mark.service
def test_the_live_table_goes_on_when_the_server_is_away_for_a_while(
    control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(record=True, width=100, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115, PTH123
    real, turns = top.scrape, [0]

    def flaky(url: str) -> Any:
        turns[0] += 1
        if turns[0] == 3:
            raise Unavailable("away")
        if turns[0] == 5:
            raise KeyboardInterrupt
        return real(url)

    monkeypatch.setattr(top, "scrape", flaky)
    with console.file, pytest.raises(KeyboardInterrupt):
        top.watch(control, 0.01, console)
    text = console.export_text()
    assert "away" in text
    assert "sum" in text

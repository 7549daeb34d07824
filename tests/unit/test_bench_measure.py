from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.sessions import FunctionSession
from trtops.accuracy import load_samples
from trtops.backend.port import BackendStatus
from trtops.bench.conditions import Conditions, condition_warnings, read_conditions
from trtops.bench.measure import FEWEST_RUNS, MIN_RUNS, measure, resolution, time_runs
from trtops.bench.results import Benchmark
from trtops.bench.workload import Work, plan_workload
from trtops.device import Device
from trtops.errors import InputError
from trtops.spec.engine import Benchmark as Settings
from trtops.spec.engine import Profile, ShapeRange
from trtops.tensor import TensorInfo

X = TensorInfo(name="x", dtype="float32", shape=("N", 2))
CPU = Device(kind="cpu", name="x86_64", cores=2)
STATUS = BackendStatus(backend="fake", version="1.2", can_build=True, can_load=True)
MS = 1_000_000


class Clock:
    """Nanoseconds that move only when something is said to take time, and by ``step`` at each reading."""

    def __init__(self, step: int = 0) -> None:
        self.now = 0
        self.step = step

    def __call__(self) -> int:
        self.now += self.step
        return self.now


class Engine(FunctionSession):
    """Takes the time that ``cost(run number)`` says, in nanoseconds."""

    def __init__(self, clock: Clock, cost: Any) -> None:
        super().__init__((X,), (X,), self._work)
        self.clock, self.cost, self.count = clock, cost, 0
        self.collecting: set[bool] = set()

    def _work(self, inputs: Any) -> Any:
        self.clock.now += int(self.cost(self.count))
        self.count += 1
        self.collecting.add(gc.isenabled())
        return {"x": inputs["x"]}


def work(batch: int = 4) -> Work:
    return Work(batch, "default", {"x": (batch, 2)}, ({"x": np.zeros((batch, 2), np.float32)},))


def bench(
    cost: Any, *, warmup: str = "10ms", duration: str = "1s", works: tuple[Work, ...] = (work(),), **more: Any
) -> Benchmark:
    clock = Clock(step=1)
    settings = Settings.model_validate(
        {"batch_sizes": [w.batch for w in works], "warmup": warmup, "duration": duration}
    )
    return measure(Engine(clock, cost), settings, works, clock, device=CPU, status=STATUS, **more)


def test_numbers_of_a_steady_engine() -> None:
    result = bench(lambda _: 2 * MS)
    (row,) = result.rows
    assert (row.batch, row.runs, row.shapes) == (4, 500, {"x": (4, 2)})
    assert row.p50.value == row.p99.value == pytest.approx(2000, rel=1e-3)
    assert row.throughput.value == pytest.approx(4 / 0.002, rel=1e-3)
    assert row.stddev < 1
    assert result.warnings == ()
    assert (result.device, result.backend, result.backend_version) == (CPU, "fake", "1.2")
    assert Benchmark.model_validate_json(result.canonical_bytes()) == result


def test_quantiles_are_those_of_the_times() -> None:
    (row,) = bench(lambda run: MS * (1 + run % 100 / 100), works=(work(1),)).rows
    assert row.p50.low < row.p50.value < row.p50.high
    assert row.p50.value == pytest.approx(1500, rel=0.02)
    assert row.p90.value == pytest.approx(1900, rel=0.02)
    assert row.p99.value == pytest.approx(1990, rel=0.02)


def test_slow_engines_stop_at_three_times_the_duration() -> None:
    result = bench(lambda _: 300 * MS, duration="1s")
    (row,) = result.rows
    assert FEWEST_RUNS < row.runs < MIN_RUNS
    assert row.runs == 10
    assert any("10 runs are too few for p99" in warning for warning in result.warnings)


def test_very_slow_engines_run_a_few_times_all_the_same() -> None:
    assert bench(lambda _: 60_000 * MS, duration="1s").rows[0].runs == FEWEST_RUNS


def test_fast_engines_are_bounded_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.bench.measure.MAX_RUNS", 700)
    assert bench(lambda _: 1000, duration="10s").rows[0].runs == 700


def test_warm_up_ends_when_latency_is_steady() -> None:
    clock = Clock()
    timing = time_runs(
        Engine(clock, lambda run: MS * (100 - run if run < 90 else 10)), work(), clock, warmup=3000 * MS, duration=MS
    )
    assert timing.steady
    assert 90 <= timing.warmup_runs < 130
    assert set(timing.nanoseconds) == {10 * MS}


def test_warm_up_is_bounded_and_says_that_latency_drifts() -> None:
    growing = bench(lambda run: MS * 1.02**run, warmup="100ms", duration="2s")
    assert any("still drifting" in warning for warning in growing.warnings)


def test_garbage_collection_is_off_while_timing_and_back_after() -> None:
    clock = Clock(step=1)
    engine = Engine(clock, lambda _: MS)
    assert gc.isenabled()
    time_runs(engine, work(), clock, warmup=MS, duration=MS)
    assert engine.collecting == {False}
    assert gc.isenabled()


def test_garbage_collection_comes_back_when_the_engine_fails() -> None:
    def fail(_: int) -> int:
        raise InputError("no")

    clock = Clock(step=1)
    with pytest.raises(InputError):
        time_runs(Engine(clock, fail), work(), clock, warmup=MS, duration=MS)
    assert gc.isenabled()


def test_a_varying_engine_is_said_to_vary() -> None:
    random = np.random.default_rng(2)
    times = random.exponential(MS, 50_000)
    warnings = bench(lambda run: times[run]).warnings
    assert any("varies by" in warning for warning in warnings)
    assert all(warning.startswith("batch 4: ") for warning in warnings)


def test_alike_neighbours_are_told() -> None:
    warnings = bench(lambda run: MS * (1 if run // 50 % 2 else 1.1)).warnings
    assert any("neighbouring runs are alike" in warning for warning in warnings)


def test_a_coarse_clock_is_told() -> None:
    class Coarse(Clock):
        def __call__(self) -> int:
            self.now += 100_000
            return self.now // MS * MS

    clock = Coarse()
    settings = Settings.model_validate({"batch_sizes": [4], "warmup": "10ms", "duration": "1s"})
    result = measure(Engine(clock, lambda _: 2 * MS), settings, (work(),), clock, device=CPU, status=STATUS)
    assert any("the clock steps by 1000000 ns" in warning for warning in result.warnings)


def test_the_resolution_of_a_clock_that_stands_still_is_zero() -> None:
    assert resolution(Clock()) == 0
    assert resolution(Clock(step=7)) == 7


def test_progress_names_each_batch_size() -> None:
    told: list[str] = []
    bench(lambda _: MS, works=(work(1), work(8)), progress=lambda step: told.append(step.phase))
    assert told == ["batch 1", "batch 8", "measured"]


def test_conditions_are_read_from_files_and_their_absence_is_no_error(tmp_path: Path) -> None:
    assert read_conditions(tmp_path, 2) == Conditions(cores=2)
    for name, text in {
        "proc/loadavg": "3.50 1.00 0.50 2/300 4242\n",
        "proc/stat": "cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 1 2\n",
        "sys/fs/cgroup/cpu.stat": "usage_usec 5\nnr_throttled 4\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2400000\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_conditions(tmp_path, 2) == Conditions(2, 3.5, "powersave", 2_400_000, 88, 4)
    (tmp_path / "proc/stat").write_text("nonsense")
    (tmp_path / "proc/loadavg").write_text("x")
    assert read_conditions(tmp_path, 2).stolen is None


def test_every_disturbance_is_put_into_words() -> None:
    before = Conditions(2, 3.5, "powersave", 2_400_000, 88, 4)
    after = Conditions(2, 3.5, "powersave", 1_200_000, 188, 6)
    text = "\n".join(condition_warnings(before, after))
    for words in ("load 3.5 on 2 CPUs", "governor powersave", "changed by -50%", "took 1.00 s", "2 times"):
        assert words in text
    assert condition_warnings(Conditions(), Conditions()) == []
    assert (
        condition_warnings(Conditions(2, 0.4, "performance", 1, 5, 0), Conditions(2, 2.0, "performance", 1, 5, 0)) == []
    )


def shapes(low: int, best: int, high: int, name: str = "default") -> Profile:
    return Profile(name=name, inputs={"x": ShapeRange(min=(low, 2), opt=(best, 3), max=(high, 4))})


DYNAMIC = TensorInfo(name="x", dtype="float32", shape=("N", "W"))


def random_samples(*inputs: TensorInfo, count: int = 32) -> Any:
    return load_samples("random", base=Path(), inputs=inputs, count=count)


def test_the_workload_takes_the_optimum_with_the_batch_size_first() -> None:
    works = plan_workload((8, 1, 8), [shapes(1, 4, 8)], [DYNAMIC], random_samples(DYNAMIC))
    assert [(item.batch, item.shapes["x"], item.profile) for item in works] == [
        (1, (1, 3), "default"),
        (8, (8, 3), "default"),
    ]
    assert all(array["x"].shape == (8, 3) for array in works[1].variants)
    assert len(works[1].variants) == 4
    assert not np.array_equal(works[1].variants[0]["x"], works[1].variants[1]["x"])


def test_the_nearest_profile_is_taken() -> None:
    profiles = [shapes(1, 1, 32, "small"), shapes(1, 32, 32, "large")]
    works = plan_workload((1, 4, 16, 32), profiles, [DYNAMIC], random_samples(DYNAMIC))
    assert [item.profile for item in works] == ["small", "small", "large", "large"]


def test_a_batch_size_outside_every_profile_is_named() -> None:
    with pytest.raises(InputError, match="batch size 9 is in no profile: a takes 1 to 4, b takes 8"):
        plan_workload((9,), [shapes(1, 2, 4, "a"), shapes(8, 8, 8, "b")], [DYNAMIC], random_samples(DYNAMIC))


def test_inputs_without_a_batch_keep_their_shape() -> None:
    inputs = [
        DYNAMIC,
        TensorInfo(name="scale", dtype="float32", shape=()),
        TensorInfo(name="k", dtype="int64", shape=(1, 5)),
    ]
    (item,) = plan_workload((2,), [shapes(1, 2, 4)], inputs, random_samples(*inputs))
    assert item.shapes == {"x": (2, 3), "scale": (), "k": (1, 5)}
    fixed = TensorInfo(name="x", dtype="float32", shape=(1, 3))
    profile = Profile(inputs={"x": ShapeRange(min=(1, 3), opt=(1, 3), max=(1, 3))})
    assert plan_workload((1,), [profile], [fixed], random_samples(fixed))[0].shapes == {"x": (1, 3)}
    with pytest.raises(InputError, match="batch size 2 is in no profile"):
        plan_workload((2,), [profile], [fixed], random_samples(fixed))


def test_variants_are_bounded_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.bench.workload._MOST_BYTES", 100)
    (item,) = plan_workload((4,), [shapes(1, 2, 4)], [DYNAMIC], random_samples(DYNAMIC))
    assert len(item.variants) == 2

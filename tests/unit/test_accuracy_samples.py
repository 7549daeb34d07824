from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtops.accuracy import load_samples
from trtops.accuracy.elements import decode, encode
from trtops.errors import InputError
from trtops.tensor import TensorInfo

X = TensorInfo(name="x", dtype="float32", shape=("N", 3, "W"))
IDS = TensorInfo(name="ids", dtype="int64", shape=("N", "L"))
ENGINES = Path(__file__).parents[2] / "engines"


def write(path: Path, **arrays: Any) -> Path:
    np.savez_compressed(path / "s.npz", **arrays)
    return path / "s.npz"


def ramp(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_arrays_named_like_inputs_are_read_and_no_others(tmp_path: Path) -> None:
    write(tmp_path, x=ramp(5, 3, 4), label=np.arange(7))
    samples = load_samples("file:s.npz", base=tmp_path, inputs=[X])
    assert samples.count == 5
    assert set(samples.arrays) == {"x"}
    assert np.array_equal(samples.arrays["x"], ramp(5, 3, 4))


def test_the_digest_follows_the_arrays_and_not_the_files_packing(tmp_path: Path) -> None:
    inputs = [X]
    write(tmp_path, x=ramp(2, 3, 4))
    first = load_samples("file:s.npz", base=tmp_path, inputs=inputs).digest
    np.savez(tmp_path / "t.npz", x=ramp(2, 3, 4), note=np.zeros(3))
    assert load_samples("file:t.npz", base=tmp_path, inputs=inputs).digest == first
    write(tmp_path, x=ramp(2, 3, 4) + np.float32(1))
    assert load_samples("file:s.npz", base=tmp_path, inputs=inputs).digest != first


def test_the_count_takes_the_first(tmp_path: Path) -> None:
    write(tmp_path, x=ramp(5, 3, 4))
    samples = load_samples("file:s.npz", base=tmp_path, inputs=[X], count=2)
    assert samples.count == 2
    assert [len(batch["x"]) for batch in samples.batches({"x": (2, 3, 4)})] == [2]


def test_batches_hold_every_sample_and_wrap_around(tmp_path: Path) -> None:
    write(tmp_path, x=ramp(5, 3, 1))
    samples = load_samples("file:s.npz", base=tmp_path, inputs=[X])
    batches = [batch["x"][:, 0, 0].tolist() for batch in samples.batches({"x": (3, 3, 1)})]
    assert batches == [[0, 3, 6], [9, 12, 0]]
    assert next(iter(samples.batches({"x": (7, 3, 1)})))["x"][:, 0, 0].tolist() == [0, 3, 6, 9, 12, 0, 3]


def test_larger_samples_are_cropped_and_smaller_ones_tiled(tmp_path: Path) -> None:
    write(tmp_path, x=ramp(1, 3, 4))
    samples = load_samples("file:s.npz", base=tmp_path, inputs=[X])
    assert samples.batch({"x": (1, 3, 2)})["x"][0, 0].tolist() == [0, 1]
    tiled = samples.batch({"x": (1, 3, 6)})["x"]
    assert tiled[0, 0].tolist() == [0, 1, 2, 3, 0, 1]
    assert tiled.flags.c_contiguous


def test_an_input_with_fixed_rows_and_a_scalar_do_not_set_the_batch(tmp_path: Path) -> None:
    inputs = [
        TensorInfo(name="size", dtype="float32", shape=(1, 2)),
        TensorInfo(name="scale", dtype="float32", shape=()),
        TensorInfo(name="x", dtype="float32", shape=("N", 2)),
    ]
    write(tmp_path, size=ramp(4, 2), scale=ramp(4), x=ramp(4, 2))
    samples = load_samples("file:s.npz", base=tmp_path, inputs=inputs)
    batches = list(samples.batches({"size": (1, 2), "scale": (), "x": (2, 2)}))
    assert [batch["x"].shape for batch in batches] == [(2, 2), (2, 2)]
    assert batches[1]["size"].tolist() == [[4.0, 5.0]]
    assert batches[1]["scale"].tolist() == 2.0


def test_random_samples_repeat_by_seed_and_hold_across_batch_sizes() -> None:
    def batch(seed: int, rows: int) -> Any:
        samples = load_samples("random", base=Path(), inputs=[X], count=4, seed=seed)
        return samples.batch({"x": (rows, 3, 5)})["x"]

    assert np.array_equal(batch(1, 4), batch(1, 4))
    assert np.array_equal(batch(1, 4)[:2], batch(1, 2))
    assert not np.array_equal(batch(1, 4), batch(2, 4))


@pytest.mark.parametrize(
    ("dtype", "numpy_type"),
    [
        ("float16", "float16"),
        ("float64", "float64"),
        ("bool", "bool"),
        ("int32", "int32"),
        ("uint8", "uint8"),
        ("bfloat16", "uint16"),
        ("float8_e4m3", "uint8"),
        ("int64", "int64"),
    ],
)
def test_random_samples_respect_the_element_type(dtype: str, numpy_type: str) -> None:
    info = TensorInfo(name="v", dtype=dtype, shape=("N", 64))
    array = load_samples("random", base=Path(), inputs=[info], count=8).batch({"v": (8, 64)})["v"]
    assert array.dtype == np.dtype(numpy_type)
    values = decode(dtype, array)
    assert np.isfinite(values).all()
    assert len(np.unique(values)) > 1
    assert np.abs(values).max() < 10


def test_float8_and_bfloat16_codes_survive_the_round_trip() -> None:
    for dtype, codes in (
        ("float8_e4m3", np.arange(256, dtype=np.uint8)),
        ("bfloat16", np.arange(65536, dtype=np.uint16)),
    ):
        values = decode(dtype, codes)
        numbers = ~np.isnan(values)
        assert np.array_equal(encode(dtype, values)[numbers], codes[numbers])
        assert np.isnan(decode(dtype, encode(dtype, np.array([np.nan])))).all()
    assert decode("float8_e4m3", encode("float8_e4m3", np.array([1e9, 0.3]))).tolist() == [448.0, 0.3125]


def test_the_codecs_agree_with_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).standard_normal(5000) * 20
    values = values.astype(np.float32)
    assert np.array_equal(encode("bfloat16", values), values.astype(ml_dtypes.bfloat16).view(np.uint16))
    theirs = values.astype(ml_dtypes.float8_e4m3fn)
    assert np.mean(encode("float8_e4m3", values) != theirs.view(np.uint8)) < 0.01  # ties go another way
    assert np.array_equal(decode("float8_e4m3", theirs.view(np.uint8)), theirs.astype(np.float64))


@pytest.mark.parametrize(
    ("arrays", "code", "words"),
    [
        ({"y": ramp(1, 3, 4)}, "samples.missing", "no array for input 'x'"),
        ({"x": ramp(1, 3, 4).astype(np.float64)}, "samples.dtype", "is float64, the model takes float32"),
        ({"x": ramp(3, 4)}, "samples.rank", "has 2 axes, the model takes 3"),
        ({"x": ramp(2, 4, 4)}, "samples.shape", r"is (2, 4, 4), the model takes ('samples', 3, 'W')"),
        ({"x": ramp(0, 3, 4)}, "samples.empty", "is empty"),
        ({"x": np.full((1, 3, 4), np.nan, np.float32)}, "samples.not-finite", "holds NaN or infinity"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, arrays: dict[str, Any], code: str, words: str) -> None:
    path = write(tmp_path, **arrays)
    with pytest.raises(InputError) as caught:
        load_samples("file:s.npz", base=tmp_path, inputs=[X])
    (problem,) = caught.value.problems
    assert problem.code == code
    assert words in problem.message
    assert problem.location.file == str(path)
    assert problem.fix


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    write(tmp_path, x=ramp(2, 3))
    with pytest.raises(InputError) as caught:
        load_samples("file:s.npz", base=tmp_path, inputs=[X, IDS])
    assert [problem.code for problem in caught.value.problems] == ["samples.rank", "samples.missing"]


def test_uneven_counts_are_refused(tmp_path: Path) -> None:
    write(tmp_path, x=ramp(2, 3, 4), ids=np.zeros((3, 5), np.int64))
    with pytest.raises(InputError) as caught:
        load_samples("file:s.npz", base=tmp_path, inputs=[X, IDS])
    assert "x has 2, ids has 3" in caught.value.problems[0].message


def test_other_byte_orders_and_fortran_order_are_read(tmp_path: Path) -> None:
    write(tmp_path, x=np.asfortranarray(ramp(2, 3, 4)).astype(">f4", order="F"))
    array = load_samples("file:s.npz", base=tmp_path, inputs=[X]).arrays["x"]
    assert array.dtype == np.dtype("=f4")
    assert np.array_equal(array, ramp(2, 3, 4))


@pytest.mark.parametrize("uri", ["s.npz", "https://example.org/s.npz", "", "npz:s"])
def test_other_schemes_are_refused(tmp_path: Path, uri: str) -> None:
    with pytest.raises(InputError, match="write random, or file:NAME"):
        load_samples(uri, base=tmp_path, inputs=[X])


def test_a_missing_file_a_folder_and_strings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such samples file"):
        load_samples("file:none.npz", base=tmp_path, inputs=[X])
    (tmp_path / "d.npz").mkdir()
    with pytest.raises(InputError, match="no such samples file"):
        load_samples("file:d.npz", base=tmp_path, inputs=[X])
    with pytest.raises(InputError, match="takes strings"):
        load_samples("random", base=tmp_path, inputs=[TensorInfo(name="t", dtype="string", shape=("N",))])


def npz(path: Path, member: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", member)


def header(text: str) -> bytes:
    body = text.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def test_what_is_not_an_npz_is_refused(tmp_path: Path) -> None:
    pickled = io.BytesIO()
    np.save(pickled, np.array([object()], dtype=object), allow_pickle=True)
    whole = io.BytesIO()
    np.savez_compressed(whole, x=ramp(4, 3, 50))
    broken = bytearray(whole.getvalue())
    broken[len(broken) // 2] ^= 0xFF
    bodies: dict[str, bytes] = {"text": b"hello", "empty": b"", "cut": whole.getvalue()[:-40], "flipped": bytes(broken)}
    members = {
        "pickle": pickled.getvalue(),
        "short": header("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 4)}") + b"\0" * 8,
        "huge": header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999, 3, 99999999)}") + b"\0" * 8,
        "negative": header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3, 4)}") + b"\0" * 48,
        "nonsense": b"\x93NUMPY\x01\x00\x05\x00abcde",
        "future": b"\x93NUMPY\x09\x00\x05\x00abcde",
    }
    for name, body in bodies.items():
        (tmp_path / f"{name}.npz").write_bytes(body)
    for name, member in members.items():
        npz(tmp_path / f"{name}.npz", member)
    for name in (*bodies, *members):
        with pytest.raises(InputError, match=r"not an \.npz of plain arrays") as caught:
            load_samples(f"file:{name}.npz", base=tmp_path, inputs=[X])
        assert caught.value.where == str(tmp_path / f"{name}.npz")
        assert ("cut short" in caught.value.what) == (name in {"short", "huge", "negative"})


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.accuracy.samples.MAX_SAMPLE_BYTES", 4000)
    write(tmp_path, x=np.zeros((100, 3, 4), np.float32))
    assert (tmp_path / "s.npz").stat().st_size < 4000
    with pytest.raises(InputError, match="larger than"):
        load_samples("file:s.npz", base=tmp_path, inputs=[X])
    write(tmp_path, x=np.random.default_rng(0).standard_normal((100, 3, 4)).astype(np.float32))
    with pytest.raises(InputError, match="larger than"):
        load_samples("file:s.npz", base=tmp_path, inputs=[X])


def test_the_shipped_samples_hold_text_lines_upright_and_turned() -> None:
    path = ENGINES / "ppocr-cls" / "samples.npz"
    info = TensorInfo(name="x", dtype="float32", shape=("N", 3, 48, 192))
    samples = load_samples("file:samples.npz", base=path.parent, inputs=[info])
    lines = np.asarray(samples.arrays["x"])
    assert samples.count == len(lines) >= 24
    assert path.stat().st_size <= 400_000
    assert -1.0 <= lines.min() < -0.8 < 0.8 < lines.max() <= 1.0
    with np.load(path, allow_pickle=False) as stored:
        labels = stored["label"]
    assert labels.tolist() == [0, 1] * (len(lines) // 2)
    for upright, turned in zip(lines[::2], lines[1::2], strict=True):
        width = 192 - int((upright == 0).all(axis=(0, 1))[::-1].argmin())  # columns before the padding
        turned_back = turned[:, ::-1, :width][:, :, ::-1]
        assert np.corrcoef(upright[:, :, :width].ravel(), turned_back.ravel())[0, 1] > 0.9
        assert np.corrcoef(upright.ravel(), turned.ravel())[0, 1] < 0.9

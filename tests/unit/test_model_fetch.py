from __future__ import annotations

import hashlib
import os
import sys
import textwrap
import zipfile
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from urllib.parse import quote

import fsspec
import pytest

from tests.support.waiting import gone, until
from trtops.digest import Digest
from trtops.errors import FetchFailed, InputError, IntegrityError, StorageError, TrtopsError, Unavailable
from trtops.model import fetch as module
from trtops.model.fetch import download, fetch, pin, redacted
from trtops.model.wheel import Member, download_member, parse_pypi
from trtops.spec.engine import ModelSource
from trtops.spec.load import load_engine
from trtops.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT = b"weights" * 1000
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(CONTENT)
    return folder


def source(uri: str, sha256: str = SHA) -> ModelSource:
    return ModelSource(source=uri, sha256=sha256)


def silent(phase: str, done: int, total: int) -> None:
    del phase, done, total


class TestLocalFiles:
    def test_relative_to_the_spec_and_absolute(self, base: Path, store: Store) -> None:
        for uri in ("file:m.onnx", "file:./m.onnx", f"file://{quote(str(base))}/m.onnx", f"file:{base}/m.onnx"):
            assert fetch(source(uri), base=base, store=store).read_bytes() == CONTENT
            store.remove(Digest("sha256", SHA))

    def test_a_second_fetch_asks_nobody(self, base: Path, store: Store) -> None:
        first = fetch(source("file:m.onnx"), base=base, store=store)
        (base / "m.onnx").unlink()
        assert fetch(source("file:m.onnx"), base=base, store=store) == first

    def test_another_digest_stops_and_names_both(self, base: Path, store: Store) -> None:
        wanted = "1" * 64
        with pytest.raises(IntegrityError) as caught:
            fetch(source("file:m.onnx", wanted), base=base, store=store)
        assert SHA in str(caught.value)
        assert wanted in str(caught.value)
        assert "model.sha256" in (caught.value.fix or "")
        assert store.digests() == ()

    def test_a_damaged_copy_is_fetched_again(self, base: Path, store: Store) -> None:
        path = fetch(source("file:m.onnx"), base=base, store=store)
        path.chmod(0o644)
        path.write_bytes(CONTENT[:-1])
        told: list[str] = []
        again = fetch(source("file:m.onnx"), base=base, store=store, on_progress=lambda phase, *_: told.append(phase))
        assert again.read_bytes() == CONTENT
        assert any("damaged" in phase for phase in told)

    def test_a_missing_file_names_its_neighbour(self, base: Path, store: Store) -> None:
        with pytest.raises(FetchFailed) as caught:
            fetch(source("file:n.onnx"), base=base, store=store)
        assert caught.value.fix == "did you mean m.onnx?"

    @pytest.mark.parametrize(
        ("uri", "error"),
        [
            ("file:", FetchFailed),
            ("file:.", FetchFailed),
            ("file:a\0b", InputError),
            ("file://host/m.onnx", InputError),
            ("m.onnx", InputError),
            ("/m.onnx", InputError),
            ("nothing://m.onnx", InputError),
        ],
    )
    def test_what_is_no_file(self, base: Path, store: Store, uri: str, error: type[TrtopsError]) -> None:
        with pytest.raises(error) as caught:
            fetch(source(uri), base=base, store=store)
        assert caught.value.fix

    def test_a_file_that_is_too_large(self, base: Path, store: Store) -> None:
        with (base / "large.onnx").open("wb") as file:
            file.truncate((2 << 30) + 1)
        with pytest.raises(InputError, match="2147483649 bytes"):
            fetch(source("file:large.onnx"), base=base, store=store)

    def test_pinning_finds_the_digest(self, base: Path, store: Store) -> None:
        pinned, path = pin("file:m.onnx", base=base, store=store)
        assert pinned == source("file:m.onnx")
        assert path.read_bytes() == CONTENT


class TestFsspec:
    @pytest.fixture(autouse=True)
    def memory(self) -> Iterator[None]:
        files = fsspec.filesystem("memory")
        files.pipe("/models/m.onnx", CONTENT)
        yield
        files.rm("/models", recursive=True)

    def test_what_fsspec_opens(self, base: Path, store: Store) -> None:
        told: list[tuple[str, int, int]] = []
        path = fetch(
            source("memory://models/m.onnx"), base=base, store=store, on_progress=lambda *done: told.append(done)
        )
        assert path.read_bytes() == CONTENT
        assert told[-1][1] == len(CONTENT)

    def test_nothing_there(self, base: Path, store: Store) -> None:
        with pytest.raises(FetchFailed, match="nothing there"):
            fetch(source("memory://models/none.onnx"), base=base, store=store)

    def test_a_package_that_is_not_installed_is_named(
        self, base: Path, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "s3fs", None)
        with pytest.raises(Unavailable) as caught:
            fetch(source("s3://bucket/m.onnx"), base=base, store=store)
        assert caught.value.fix == "pip install s3fs"

    def test_more_bytes_than_the_limit(self, base: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_MODEL_BYTES", 100)
        with pytest.raises(FetchFailed, match="more than 100 bytes"):
            fetch(source("memory://models/m.onnx"), base=base, store=store)

    def test_credentials_are_not_shown(self, base: Path, store: Store) -> None:
        with pytest.raises(TrtopsError) as caught:
            fetch(source("http://user:hunter2@127.0.0.1:1/m.onnx?token=hunter2"), base=base, store=store)
        assert "hunter2" not in str(caught.value)

    def test_a_disk_that_is_full(self, base: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("trtops.model.fetch.tempfile.TemporaryDirectory", _Full)
        with pytest.raises(StorageError, match="No space left"):
            fetch(source("memory://models/m.onnx"), base=base, store=store)
        assert store.digests() == ()


class _Full:
    """A folder on a disk that is full: its file is /dev/full, which refuses every write."""

    def __init__(self, prefix: str = "") -> None:
        self.folder = Path(mkdtemp(prefix=prefix))

    def __enter__(self) -> str:
        (self.folder / "model").symlink_to("/dev/full")
        return str(self.folder)

    def __exit__(self, *error: object) -> None:
        (self.folder / "model").unlink()
        self.folder.rmdir()


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://u:p@h/x?sig=1#f", "https://h/x?…"),
        ("s3://bucket/key", "s3://bucket/key"),
        ("zip://a::https://u:p@h/x", "zip://a::https://h/x"),
        ("file:a b", "file:a b"),
        ("http://[bad/x", "http:…"),
    ],
)
def test_uris_are_shown_without_credentials(uri: str, shown: str) -> None:
    assert redacted(uri) == shown


class TestPypiAddresses:
    def test_a_good_one(self) -> None:
        member = parse_pypi("pypi://a-b.c==1.0.post1+x/p/q.onnx")
        assert (member.requirement, member.path) == ("a-b.c==1.0.post1+x", "p/q.onnx")

    @pytest.mark.parametrize(
        "uri",
        [
            "pypi://a/p",
            "pypi://a==1",
            "pypi://a==1/",
            "pypi://a>=1/p",
            "pypi://--index-url==1/p",
            "pypi://a==-1/p",
            "pypi://a==1/../p",
            "pypi://a==1//p",
            "pypi://a==1/p/..",
            "pypi://a==1/p\\q",
            "pypi://a==1/p\nq",
            "pypi://a==1 --index-url=x/p",
        ],
    )
    def test_a_bad_one(self, uri: str) -> None:
        with pytest.raises(InputError) as caught:
            parse_pypi(uri)
        assert "pypi://NAME==VERSION/path/in/wheel" in (caught.value.fix or "")


def wheel(folder: Path, files: dict[str, bytes], name: str = "tiny_model") -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in files.items():
            archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Python: <3\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def fake_pip(folder: Path, script: str) -> tuple[str, ...]:
    """A pip that runs a script; ``target`` is the folder that the wheel is wanted in."""
    path = folder / "fake_pip.py"
    head = "import sys, os, shutil, time\ntarget = sys.argv[sys.argv.index('-d') + 1]\n"
    path.write_text(head + textwrap.dedent(script))
    return (sys.executable, "-I", "-S", str(path))


@pytest.mark.service
class TestWheels:
    URI = "pypi://tiny-model==1.0/tiny_model/m.onnx"

    def get(self, tmp_path: Path, uri: str = URI, **options: object) -> bytes:
        target = tmp_path / "out"
        download_member(parse_pypi(uri), target, limit=1 << 20, on_progress=silent, **options)  # type: ignore[arg-type]
        return target.read_bytes()

    @pytest.fixture
    def index(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An index of the user's own, set as users set it: by pip's environment."""
        folder = tmp_path / "index"
        folder.mkdir()
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
        return folder

    def test_one_file_of_a_wheel_for_other_pythons_and_the_user_s_index(self, tmp_path: Path, index: Path) -> None:
        wheel(index, {"tiny_model/m.onnx": CONTENT, "tiny_model/other": b"x"})
        assert self.get(tmp_path) == CONTENT

    def test_the_whole_fetch_is_verified_and_kept(self, base: Path, store: Store, index: Path) -> None:
        path = wheel(index, {"tiny_model/m.onnx": CONTENT})
        fetch(source(self.URI), base=base, store=store)
        path.unlink()
        assert fetch(source(self.URI), base=base, store=store).read_bytes() == CONTENT

    def test_a_version_that_is_not_there(self, tmp_path: Path, index: Path) -> None:
        assert index.is_dir()
        with pytest.raises(FetchFailed) as caught:
            self.get(tmp_path)
        assert "No matching distribution found for tiny-model==1.0" in str(caught.value)
        assert "model.source" in (caught.value.fix or "")

    def test_a_file_that_is_not_in_it_names_the_nearest(self, tmp_path: Path, index: Path) -> None:
        wheel(index, {"tiny_model/models/m.onnx": CONTENT})
        with pytest.raises(FetchFailed) as caught:
            self.get(tmp_path)
        assert "tiny_model/models/m.onnx" in (caught.value.fix or "")

    def serve(self, tmp_path: Path, path: Path) -> tuple[str, ...]:
        return fake_pip(tmp_path, f"shutil.copy({str(path)!r}, target)")

    def test_a_file_larger_than_the_limit(self, tmp_path: Path) -> None:
        path = wheel(tmp_path, {"tiny_model/m.onnx": b"\0" * ((1 << 20) + 1)})
        with pytest.raises(FetchFailed, match="more than 1048576 bytes"):
            self.get(tmp_path, pip=self.serve(tmp_path, path))

    def test_a_header_that_lies_about_the_size(self, tmp_path: Path) -> None:
        path = wheel(tmp_path, {"tiny_model/m.onnx": b"\0" * (4 << 20)})
        content = path.read_bytes()
        path.write_bytes(content.replace((4 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little")))
        with pytest.raises(FetchFailed, match="damaged"):
            self.get(tmp_path, pip=self.serve(tmp_path, path))
        assert (tmp_path / "out").stat().st_size <= 100

    def test_nothing_of_the_working_directory_is_run(
        self, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A check runs in the checkout of somebody's change."""
        here = tmp_path / "checkout"
        (here / "pip").mkdir(parents=True)
        for name in ("pip/__init__.py", "pip/__main__.py", "runpy.py", "zipfile.py"):
            (here / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n", encoding="utf-8")
        monkeypatch.chdir(here)
        self.test_one_file_of_a_wheel_for_other_pythons_and_the_user_s_index(tmp_path, index)
        assert not (tmp_path / "ran").exists()

    def test_a_wheel_that_was_cut_short(self, tmp_path: Path) -> None:
        path = wheel(tmp_path, {"tiny_model/m.onnx": os.urandom(10_000)})
        path.write_bytes(path.read_bytes()[:5000])
        with pytest.raises(FetchFailed, match="damaged"):
            self.get(tmp_path, pip=self.serve(tmp_path, path))

    def test_a_wheel_with_a_flipped_bit(self, tmp_path: Path) -> None:
        path = wheel(tmp_path, {"tiny_model/m.onnx": os.urandom(10_000)})
        content = bytearray(path.read_bytes())
        content[3000] ^= 1
        path.write_bytes(bytes(content))
        with pytest.raises(FetchFailed, match="damaged"):
            self.get(tmp_path, pip=self.serve(tmp_path, path))

    def test_a_folder_of_the_wheel(self, tmp_path: Path) -> None:
        path = wheel(tmp_path, {"tiny_model/m.onnx/": b""})
        with zipfile.ZipFile(path) as archive:
            assert archive.getinfo("tiny_model/m.onnx/").is_dir()
        with pytest.raises(FetchFailed):
            self.get(tmp_path, pip=self.serve(tmp_path, path))

    def test_a_pip_that_fails_shows_its_last_words_without_credentials(self, tmp_path: Path) -> None:
        script = "print('x\\n' * 50, 'ERROR: https://me:hunter2@index/simple says no'); sys.exit(1)"
        with pytest.raises(FetchFailed) as caught:
            self.get(tmp_path, pip=fake_pip(tmp_path, script))
        assert "https://…@index/simple says no" in str(caught.value)
        assert str(caught.value).count("x\n") < 10

    def test_an_index_that_cannot_be_reached_is_said_in_a_line(self, tmp_path: Path) -> None:
        """Pip says so in a screen of retries, and then that there is no such package."""
        script = """
        print("WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError()': /simple/x/")
        print("ERROR: Could not find a version that satisfies the requirement (from versions: none)")
        sys.exit("ERROR: No matching distribution found for tiny-model==1.0")
        """
        with pytest.raises(FetchFailed) as caught:
            self.get(tmp_path, pip=fake_pip(tmp_path, script))
        assert "no connection to the index; No matching distribution" in caught.value.what
        assert "Retrying" not in caught.value.what
        assert "check the network" in (caught.value.fix or "")

    def test_a_pip_that_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(FetchFailed, match="0 wheels"):
            self.get(tmp_path, pip=fake_pip(tmp_path, "pass"))

    def test_a_pip_that_hangs_is_stopped_with_its_children(self, tmp_path: Path) -> None:
        pids = tmp_path / "pids"
        script = f"""
            child = os.fork()
            open({str(pids)!r}, 'a').write(f'{{os.getpid()}} ')
            time.sleep(100)
        """
        with pytest.raises(FetchFailed, match="took longer"):
            self.get(tmp_path, pip=fake_pip(tmp_path, script), timeout=6)
        for pid in map(int, pids.read_text().split()):
            until(partial(gone, pid), f"{pid} ends")

    def test_a_python_without_pip(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable) as caught:
            self.get(tmp_path, pip=(sys.executable, "-I", "-S", "-m", "pip"))
        assert "ensurepip" in (caught.value.fix or "")

    def test_a_pip_that_cannot_be_started(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable):
            self.get(tmp_path, pip=(str(tmp_path / "none"),))


def test_a_uri_is_downloaded_into_the_folder_that_is_given(tmp_path: Path, base: Path) -> None:
    assert download("file:m.onnx", base=base, into=tmp_path) == base / "m.onnx"


def test_a_member_is_a_value() -> None:
    assert parse_pypi("pypi://a==1/p") == Member("pypi://a==1/p", "a", "1", "p")


@pytest.mark.network
def test_the_shipped_engine_s_model_is_what_was_reviewed(store: Store) -> None:
    folder = Path(__file__).parents[2] / "engines" / "ppocr-cls"
    path = fetch(load_engine(folder).spec.model, base=folder, store=store)
    assert path.stat().st_size == 585_532

"""Laws of the store: what goes in comes out, and a key never reaches outside its kind."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from trtops.digest import Digest
from trtops.store import Store

KEYS = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable() or "\0" not in text)


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=200), max_size=8))
def test_every_artifact_comes_back(bodies: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        digests = [store.put_bytes(body) for body in bodies]
        assert [store.read(digest, 200) for digest in digests] == bodies
        assert store.digests() == tuple(sorted({Digest.of_bytes(body) for body in bodies}))


@settings(max_examples=100)
@given(st.dictionaries(KEYS.filter(lambda key: len(key.encode("utf-8", "replace")) <= 60), st.binary(max_size=20)))
def test_records_are_a_dictionary(wanted: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store")
        for key, body in wanted.items():
            store.keep("kind", key, body)
        assert store.records("kind") == wanted
        assert [path.name for path in Path(folder).iterdir()] == (["store"] if wanted else [])

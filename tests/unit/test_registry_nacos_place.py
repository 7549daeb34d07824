"""Names, texts and URLs of a Nacos, with no server."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtops.errors import InputError
from trtops.registry.nacos.place import SENTINEL, body_of, data_id, md5_of, name_of, parse_place, text_of
from trtops.registry.nacos.setup import ROLES, State, plan, rights, user_name

ALLOWED = re.compile(r"[A-Za-z0-9_.:-]{1,255}")
NAMES = st.lists(
    st.text("abcXYZ019._-", min_size=1, max_size=8).filter(lambda one: one not in {".", ".."}), min_size=1, max_size=6
).map("/".join)


@given(NAMES)
def test_a_name_comes_back(name: str) -> None:
    assert ALLOWED.fullmatch(data_id(name))
    assert name_of(data_id(name)) == name


@given(st.text("ab:./_- *%", max_size=12))
def test_what_is_no_name_is_somebody_elses(identifier: str) -> None:
    name = name_of(identifier)
    assert name is None or data_id(name) == identifier


def test_no_name_leads_to_the_sentinel() -> None:
    assert name_of(SENTINEL) is None
    assert ALLOWED.fullmatch(SENTINEL)


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "ignore")))
def test_a_body_comes_back_and_is_never_blank(body: bytes) -> None:
    text = text_of(body)
    assert body_of(text) == body
    assert text.strip()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_different_bodies_have_different_texts(one: bytes, other: bytes) -> None:
    assert (text_of(one) == text_of(other)) is (one == other)


def test_a_document_is_readable_in_a_console() -> None:
    assert text_of('{"a": "ä€😀"}\n'.encode()) == '{"a": "ä€😀"}\n'
    assert text_of(b"base64:eA==") != "base64:eA=="


def test_broken_base64_is_told() -> None:
    with pytest.raises(ValueError, match="no base64"):
        body_of("base64:&")


def test_the_md5_is_lower_case() -> None:
    assert md5_of("abc") == "900150983cd24fb0d6963f7d28e17f72"


@pytest.mark.parametrize(
    ("url", "addresses", "tls"),
    [
        ("nacos://127.0.0.1:18848", ("127.0.0.1:18848",), False),
        ("nacos://nacos.example/", ("nacos.example:8848",), False),
        ("nacos+tls://a:1,b:2", ("a:1", "b:2"), True),
        ("nacos://[::1]:8848", ("[::1]:8848",), False),
    ],
)
def test_urls(url: str, addresses: tuple[str, ...], tls: bool) -> None:
    place = parse_place(url)
    assert (place.addresses, place.tls) == (addresses, tls)
    assert parse_place(str(place)) == place
    assert all(one.startswith("https://" if tls else "http://") for one in place.urls())


@pytest.mark.parametrize("url", ["nacos://", "nacos://a b:1", "nacos://a:0", "nacos://a:65536", "nacos://a:x", "http://a:1", "nacos://a:1/path", "nacos://a,,b"])  # fmt: skip
def test_bad_urls(url: str) -> None:
    with pytest.raises(InputError, match="not the URL of a Nacos") as caught:
        parse_place(url, where="flag --registry")
    assert caught.value.where == "flag --registry"
    assert "nacos://HOST:PORT" in str(caught.value.fix)


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(InputError, match="holds a user or a password") as caught:
        parse_place("nacos://me:hunter2@a:1")
    assert "hunter2" not in str(caught.value)


def _whole(environment: str) -> State:
    names = {role: user_name(environment, role) for role in ROLES}
    return State(
        namespace=True,
        sentinel="there",
        users=frozenset(names.values()),
        roles=frozenset((name, name) for name in names.values()),
        permissions=frozenset(
            (names[role], resource, allowed)
            for role, action in ROLES.items()
            for resource, allowed in rights(environment, action)
        ),
    )


def test_what_is_there_is_not_planned() -> None:
    assert plan(_whole("prod"), "prod") == ()
    other = plan(_whole("prod"), "staging")
    assert [step.words for step in other[:2]] == [
        "make the user trtops-staging-publisher",
        "give it the role trtops-staging-publisher",
    ]


def test_the_sentinel_comes_last_and_the_namespace_first() -> None:
    empty = State(False, None, frozenset(), frozenset(), frozenset())
    steps = plan(empty, "prod")
    assert steps[0].words == "make the namespace prod"
    assert steps[-1].words == "mark the namespace as prod"
    assert len(steps) == 2 + 2 * (2 + 2)
    assert [step.password_of for step in steps if step.password_of] == ["trtops-prod-publisher", "trtops-prod-service"]


def test_a_service_gets_no_right_to_write() -> None:
    granted = [step.words for step in plan(State(True, "", frozenset(), frozenset(), frozenset()), "prod")]
    assert "let trtops-prod-service read prod:TRTOPS:config/*" in granted
    assert "let trtops-prod-publisher read and write prod:TRTOPS:config/*" in granted
    assert not [words for words in granted if "service read and write" in words]

"""URLs, and the origins that they name."""

from __future__ import annotations

import pytest

from tilert_stream.errors import ConfigError
from tilert_stream.http.client import Origin


@pytest.mark.parametrize(
    ("url", "origin", "netloc"),
    [
        ("http://node", Origin("http", "node", 80), "node"),
        ("http://node:80/", Origin("http", "node", 80), "node"),
        ("http://10.0.0.7:8000", Origin("http", "10.0.0.7", 8000), "10.0.0.7:8000"),
        ("https://node", Origin("https", "node", 443), "node"),
        ("https://node:80", Origin("https", "node", 80), "node:80"),
        ("http://[::1]:8000", Origin("http", "::1", 8000), "[::1]:8000"),
        ("http://[2001:db8::1]", Origin("http", "2001:db8::1", 80), "[2001:db8::1]"),
        ("http://node:1/a/b/", Origin("http", "node", 1, prefix="/a/b"), "node:1"),
        ("http+unix:///run/x.sock", Origin("http+unix", "", 0, "/run/x.sock"), "localhost"),
        (
            "http+unix://%2Frun%2Fx.sock/v2",
            Origin("http+unix", "", 0, "/run/x.sock", prefix="/v2"),
            "localhost",
        ),
    ],
)
def test_a_url_is_read(url: str, origin: Origin, netloc: str) -> None:
    read = Origin.parse(url, label="x")
    assert read == origin.labelled("x")
    assert read.netloc == netloc


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("node:8000", "its scheme is 'node'"),
        ("", "its scheme is ''"),
        ("ftp://node", "its scheme is 'ftp'"),
        ("http://", "it has no host"),
        ("http://:80", "it has no host"),
        ("http://node:", "its port is empty"),
        ("http://node:0", "its port is 0"),
        ("http://node:65536", "Port out of range"),
        ("http://node:80x", "Port could not be cast"),
        ("http://::1:8000", "Port could not be cast"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://[1.2.3.4]:80", "IPv4 address|IPv6"),
        ("http://no de", "its host is 'no de'"),
        ("http://node/a b", "not percent-encoded"),
        ("http://node?x=1", "query or a fragment"),
        ("http://node#x", "query or a fragment"),
        ("http+unix://x.sock", "the path of its socket is not absolute"),
        ("http+unix://", "the path of its socket is not absolute"),
    ],
)
def test_a_url_that_names_no_origin(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        Origin.parse(url)
    assert repr(url) in caught.value.message


def test_a_password_is_never_shown() -> None:
    with pytest.raises(ConfigError, match="user name") as caught:
        Origin.parse("http://me:secret@node:80")
    assert "secret" not in caught.value.message
    assert "…@node:80" in caught.value.message


def test_its_label_is_the_url_unless_it_has_one() -> None:
    assert Origin.parse("http://[::1]:8000/v").label == "http://[::1]:8000/v"
    assert Origin.parse("http+unix:///a.sock").label == "http+unix:///a.sock"
    assert Origin.parse("http://node", label="the node").label == "the node"


def test_an_origin_is_what_it_consists_of() -> None:
    one, other = (Origin.parse("http://node:80/a", label="x") for _ in range(2))
    assert one == other
    assert len({one, other, one.labelled("y")}) == 2
    assert repr(one) == (
        "Origin(scheme='http', host='node', port=80, uds=None, prefix='/a', label='x')"
    )

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilert_stream.cluster.address import NodeAddress
from tilert_stream.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "origin"),
    [
        ("decode-0:5556:5557", "decode-0", "http://decode-0:5557"),
        ("10.0.0.7:5556:5557", "10.0.0.7", "http://10.0.0.7:5557"),
        ("[::1]:5556:5557", "::1", "http://[::1]:5557"),
        ("[2001:DB8:0::7]:5556:5557", "2001:db8::7", "http://[2001:db8::7]:5557"),
        ("[fe80::1%eth0]:5556:5557", "fe80::1%eth0", "http://[fe80::1%eth0]:5557"),
        ("gpu_7.rack.example.:5556:5557", "gpu_7.rack.example.", "http://gpu_7.rack.example.:5557"),
    ],
)
def test_a_node_is_a_host_and_two_ports(text: str, host: str, origin: str) -> None:
    address = NodeAddress.parse(text)
    assert address == NodeAddress(host, 5556, 5557)
    assert address.origin == origin
    assert NodeAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "the host is missing"),
        (":5556:5557", "the host is missing"),
        ("decode-0", "0 ports where two are needed"),
        ("decode-0:5556", "1 ports where two are needed"),
        ("decode-0:5556:5557:5558", "3 ports where two are needed"),
        ("decode-0:5556:", "HTTP is ''"),
        ("decode-0:x:5557", "CTRL is 'x'"),
        ("decode-0:0:5557", "CTRL is '0'"),
        ("decode-0:5556:65536", "HTTP is '65536'"),
        ("decode-0:+5556:5557", r"CTRL is '\+5556'"),
        ("decode-0: 5556:5557", "CTRL is ' 5556'"),
        ("decode-0:5_556:5557", "CTRL is '5_556'"),
        ("decode-0:٥٥٥٦:5557", "CTRL is '٥٥٥٦'"),
        ("decode-0:5556:5556", "CTRL and HTTP are both 5556"),
        ("::1:5556:5557", "stands in brackets"),
        ("2001:db8::7:5556:5557", "stands in brackets"),
        ("2001:db8::7", "stands in brackets"),
        ("[::1:5556:5557", "never closed"),
        ("[::1]", "come two ports"),
        ("[::1]5556:5557", "come two ports"),
        ("[::1]:5556", "1 ports where two are needed"),
        ("[10.0.0.7]:5556:5557", "no IPv6 address"),
        ("[decode-0]:5556:5557", "no IPv6 address"),
        ("10.0.0.300:5556:5557", "no IPv4 address"),
        ("10.0.7:5556:5557", "no IPv4 address"),
        ("http://decode-0:5556:5557", "3 ports where two"),
        ("decode 0:5556:5557", "'decode 0' cannot be a part"),
        ("-decode:5556:5557", "'-decode' cannot be a part"),
        ("a..b:5556:5557", "'' cannot be a part"),
        ("décode:5556:5557", "'décode' cannot be a part"),
        ("decode-0\n:5556:5557", r"cannot be a part"),
        (".".join(["a" * 60] * 5) + ":5556:5557", "at most 253 characters"),
    ],
)
def test_a_bad_address_is_shown_with_its_fault(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault) as caught:
        NodeAddress.parse(text)
    assert repr(text) in caught.value.message
    assert "HOST:CTRL:HTTP" in caught.value.message
    assert caught.value.param == "decode"


@given(st.text(alphabet="[]:.%-_ 0123456789abcdefxyz", max_size=40))
def test_any_text_is_an_address_that_prints_itself_or_is_refused(text: str) -> None:
    try:
        address = NodeAddress.parse(text)
    except ConfigError:
        return
    assert NodeAddress.parse(str(address)) == address

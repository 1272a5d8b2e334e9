"""Where a decode node is: ``HOST:CTRL:HTTP`` in, host and two ports out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NoReturn

from tilert_stream.errors import ConfigError

__all__ = ("NodeAddress",)

_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_FORM: Final = "HOST:CTRL:HTTP, such as decode-0:5556:5557 or [2001:db8::7]:5556:5557"


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A decode node's two ports on one host."""

    host: str
    """A DNS name, an IPv4 or an IPv6 address, the latter without brackets."""
    ctrl_port: int
    """Where prefill nodes hand their KV cache over."""
    http_port: int
    """Where routers call."""

    @classmethod
    def parse(cls, text: str) -> NodeAddress:
        """Read ``HOST:CTRL:HTTP``; an IPv6 address stands in brackets, as in a URL (RFC 3986).

        :raises ~tilert_stream.errors.ConfigError: anything else; the message shows ``text`` and
            says what is wrong with it.
        """
        if text.startswith("["):
            inside, bracket, rest = text[1:].partition("]")
            if not bracket:
                _refuse(text, "the bracket is never closed")
            if rest[:1] != ":":
                _refuse(text, "after the bracket come two ports")
            host, ports = _ipv6(text, inside), rest[1:].split(":")
        else:
            name, *ports = text.split(":")
            if len(ports) > 2 and _is_ipv6(text):
                _refuse(text, "an IPv6 address stands in brackets, with both ports behind it")
            host = _name(text, name)
        if len(ports) != 2:
            _refuse(text, f"it has {len(ports)} ports where two are needed")
        ctrl_port, http_port = _port(text, "CTRL", ports[0]), _port(text, "HTTP", ports[1])
        if ctrl_port == http_port:
            _refuse(text, f"CTRL and HTTP are both {ctrl_port}")
        return cls(host, ctrl_port, http_port)

    @property
    def origin(self) -> str:
        """The HTTP origin: scheme, host and port."""
        return f"http://{self._bracketed}:{self.http_port}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self._bracketed}:{self.ctrl_port}:{self.http_port}"


def _refuse(text: str, fault: str) -> NoReturn:
    raise ConfigError(f"{text!r} is no node address: {fault}; write {_FORM}.", param="decode")


def _is_ipv6(text: str) -> bool:
    """Whether ``text`` is one, alone or with ports behind it: then brackets are missing."""
    parts = text.split(":")
    for end in (len(parts), len(parts) - 2):
        try:
            IPv6Address(":".join(parts[:end]))
        except AddressValueError:
            continue
        return True
    return False


def _ipv6(text: str, inside: str) -> str:
    try:
        return str(IPv6Address(inside))
    except AddressValueError as error:
        _refuse(text, f"{inside!r} is no IPv6 address ({error})")


def _name(text: str, name: str) -> str:
    if not name:
        _refuse(text, "the host is missing")
    labels = name.removesuffix(".").split(".")
    if labels[-1].isdigit():
        # A name's last label is never a number (RFC 3696): this is meant as an address.
        try:
            return str(IPv4Address(name))
        except AddressValueError as error:
            _refuse(text, f"{name!r} is no IPv4 address ({error})")
    for label in labels:
        if not _LABEL.fullmatch(label):
            _refuse(text, f"{name!r} is no host name ({label!r} cannot be a part of one)")
    if len(name) > 253:
        _refuse(text, f"a host name has at most 253 characters, this one {len(name)}")
    return name


def _port(text: str, which: str, digits: str) -> int:
    # int() also takes signs, spaces, underscores and other scripts' digits.
    if not re.fullmatch(r"[0-9]{1,5}", digits) or not 1 <= int(digits) <= 65535:
        _refuse(text, f"{which} is {digits!r}, a port is a number from 1 to 65535")
    return int(digits)

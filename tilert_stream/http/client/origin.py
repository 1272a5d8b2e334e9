"""Where a request goes: a URL in, the address to connect to and the ``Host`` to name out."""

from __future__ import annotations

import ipaddress
from typing import Final, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import unquote, urlsplit

from ...errors import ConfigError

__all__ = ("Origin",)

Scheme: TypeAlias = Literal["http", "https", "http+unix"]

_PORTS: Final = {"http": 80, "https": 443, "http+unix": 0}


class Origin(NamedTuple):
    """A server, as ``parse`` reads it from a URL."""

    scheme: Scheme
    host: str
    """A name, or an address without brackets; empty for a Unix socket."""
    port: int
    uds: str | None = None
    """Path of the Unix socket."""
    prefix: str = ""
    """Path under which the server is published; goes before every target. No slash at its end."""
    label: str = ""
    """What clients read in place of the address; the URL where none is given."""

    @classmethod
    def parse(cls, url: str, *, label: str | None = None) -> Origin:
        """Read ``http://host:port/prefix``, ``https://…`` or ``http+unix:///path/of/socket``.

        An IPv6 address stands in brackets. A socket's path may also be percent-encoded in the
        place of the host (``http+unix://%2Frun%2Fx.sock/prefix``), which leaves room for a prefix.

        :raises ~tilert_stream.errors.ConfigError: no URL that a request can be sent to.
        """
        try:
            return _parse(url, label)
        except ValueError as error:
            # A user name in a URL comes with a password: it is shown nowhere.
            shown = url if "@" not in url else "…@" + url.rpartition("@")[2]
            raise ConfigError(
                f"the URL {shown!r} cannot be used: {error}; write http://host:port,"
                " https://host:port, or http+unix:///path/of/socket (an IPv6 address in brackets)"
            ) from error

    @property
    def netloc(self) -> str:
        """What stands in the ``Host`` header (RFC 9110, 7.2)."""
        if self.uds is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def labelled(self, label: str) -> Origin:
        """This origin, called ``label`` before clients."""
        return self._replace(label=label)

    def __str__(self) -> str:
        where = self.netloc if self.uds is None else self.uds
        return f"{self.scheme}://{where}{self.prefix}"


def _parse(url: str, label: str | None) -> Origin:
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise ValueError(f"its scheme is {parts.scheme!r}")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise ValueError("it has a query or a fragment")
    if "@" in parts.netloc:
        raise ValueError("it has a user name: give the key by its own option")
    scheme = cast("Scheme", parts.scheme)
    if scheme == "http+unix":
        path, prefix = (unquote(parts.netloc), parts.path) if parts.netloc else (parts.path, "")
        if not path.startswith("/"):
            raise ValueError("the path of its socket is not absolute")
        origin = Origin(scheme, "", 0, path)
    else:
        # urlsplit raises ValueError for a port that is no number, or over 65535.
        port = _PORTS[scheme] if parts.port is None else parts.port
        prefix = parts.path
        origin = Origin(scheme, _host(parts.netloc, parts.hostname), port)
        if not port:
            raise ValueError("its port is 0")
    origin = origin._replace(prefix=_prefix(prefix))
    return origin.labelled(label or str(origin))


def _host(netloc: str, host: str | None) -> str:
    if not host:
        raise ValueError("it has no host")
    if netloc.startswith("["):
        ipaddress.IPv6Address(host)
    elif not (host.isascii() and all(c.isalnum() or c in "-._" for c in host)):
        raise ValueError(f"its host is {host!r}")
    if netloc.endswith(":"):
        raise ValueError("its port is empty")
    return host


def _prefix(path: str) -> str:
    if not path.isascii() or any(c <= " " or c == "\x7f" for c in path):
        raise ValueError(f"its path is {path!r}, which is not percent-encoded")
    return path.rstrip("/")

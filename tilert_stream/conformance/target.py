"""Where the server is: a base URL in, host, port and paths out."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ..errors import ConfigError

__all__ = ("Target",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server. The key never stands in a report."""

    host: str
    port: int
    prefix: str = ""
    """What stands before ``/v1``."""
    tls: bool = False
    verify: bool = True
    """Whether the server's certificate has to be one that this machine trusts."""
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, base_url: str, *, api_key: str | None = None, verify: bool = True) -> Target:
        """Read a base URL, with or without the ``/v1`` that the openai SDK wants at its end.

        :raises ~tilert_stream.errors.ConfigError: no URL of http or https.
        """
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError as error:
            raise _bad(base_url) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _bad(base_url)
        tls = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=port or (443 if tls else 80),
            prefix=parts.path.rstrip("/").removesuffix("/v1"),
            tls=tls,
            verify=verify,
            api_key=api_key,
        )

    @property
    def url(self) -> str:
        """The base URL without ``/v1``."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        """The Host header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def tls_context(self) -> ssl.SSLContext | None:
        """What a TLS connection needs; None where there is no TLS."""
        if not self.tls:
            return None
        context = ssl.create_default_context()
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _bad(base_url: str) -> ConfigError:
    return ConfigError(
        f"base_url is {base_url!r}; it must be like http://127.0.0.1:8000/v1.", param="base_url"
    )

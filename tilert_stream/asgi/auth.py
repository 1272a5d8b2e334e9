"""API keys: the Authorization header in, nothing or ``AuthenticationFailed`` out."""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING

from ..errors import AuthenticationFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("KeyRing",)


class KeyRing:
    """The keys that open this server; an empty ring opens to everybody."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = tuple(key.encode() for key in keys)

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Compare the bearer token with every key, in constant time.

        :raises ~tilert_stream.errors.AuthenticationFailed: none fits. The message never holds a
            key.
        """
        if not self._keys:
            return
        given = next((value for name, value in headers if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer" or not token:
            raise AuthenticationFailed("send the API key as 'Authorization: Bearer <key>'")
        # Every key is compared, so that the time does not tell which one came close.
        if not sum(compare_digest(token.strip(), key) for key in self._keys):
            raise AuthenticationFailed("the API key is not one of this server's keys")

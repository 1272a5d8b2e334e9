"""A router's signatures for one node: a call in, its headers out; a refusal in, whom to sign for.

A signature names the node that it is for, so that what one node has heard is refused by every other
one, and by the same one once it has restarted. Who answers at an address is learnt from its first
refusal, and anew after each restart: the request is then sent once more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..http.client import Response

__all__ = ("Sign", "Signing")

Sign: TypeAlias = "Callable[[str, str, str, bytes], str]"
"""Makes the value of the ``tilert-signature`` header from node, method, target and body."""

SIGNATURE: Final = "tilert-signature"
NODE: Final = b"tilert-node"

UNSIGNED: Final = (("content-type", "application/json"),)
"""The headers of a call with a JSON body."""

_NAME: Final = re.compile(r"[0-9a-f]{32}")


class Signing:
    """What is known of one node.

    :param sign: None where the cluster has no key.
    """

    __slots__ = ("_sign", "node")

    def __init__(self, sign: Sign | None) -> None:
        self._sign = sign
        self.node: str | None = None
        """Who answers there; None: not known yet."""

    @property
    def off(self) -> bool:
        """Nothing is signed."""
        return self._sign is None

    def headers(self, method: str, target: str, body: bytes) -> Sequence[tuple[str, str]]:
        """The headers of one call with a JSON body; signed, if the node is known."""
        if self._sign is None or self.node is None:
            return UNSIGNED
        return (*UNSIGNED, (SIGNATURE, self._sign(self.node, method, target, body)))

    def learn(self, response: Response, meant: str | None) -> bool:
        """Whether ``response`` refuses a call for ``meant`` because somebody else answers there.

        The same call, signed anew, is then worth another try.
        """
        if self._sign is None or response.status != 401:
            return False
        node = response.header(NODE)
        if node is None or node == meant or not _NAME.fullmatch(node):
            return False
        self.node = node
        return True

"""The SDK's own tests that cannot pass here: which, what the server answers, and why.

All others of ``MODULES`` must pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MODULES = ("chat/test_completions.py", "test_completions.py", "test_models.py")
"""In the SDK's ``tests/api_resources``: of the endpoints that are served here."""


@dataclass(frozen=True)
class Difference:
    """Tests that fail, all in the same way."""

    name: str
    tests: re.Pattern[str]
    """Matches ``module::test``."""
    answer: str
    """What the SDK has to raise holds these words."""
    why: str


DIFFERENCES = (
    Difference(
        "all parameters of a chat",
        re.compile(r"chat/test_completions\.py::test_method_create_with_all_params"),
        "400 - max_tokens is 0; it must be at least 1",
        "the example asks for no token, and beside that for audio, functions, a web search and a"
        " bias of the token 'foo': a server that took them would ignore them",
    ),
    Difference(
        "all parameters of a completion",
        re.compile(r"test_completions\.py::test_method_create_with_all_params"),
        '400 - suffix is "test.", which is not served',
        "text is not inserted; the example also has log-probabilities of the prompt (echo with"
        " logprobs) and a bias of the token 'foo'",
    ),
    Difference(
        "stored chats, one of them",
        re.compile(
            r"chat/test_completions\.py::test_(method|(raw|streaming)_response)_"
            r"(retrieve|update|delete)"
        ),
        "404 - no such path: /v1/chat/completions/",
        "no answer is stored",
    ),
    Difference(
        "stored chats, their list",
        re.compile(r"chat/test_completions\.py::test_(method|(raw|streaming)_response)_list"),
        "405 - GET is not allowed here; use POST",
        "no answer is stored",
    ),
    Difference(
        "deleting a model",
        re.compile(r"test_models\.py::test_(method|(raw|streaming)_response)_delete"),
        "405 - DELETE is not allowed here; use GET",
        "a client cannot take the model away",
    ),
)


def difference(test: str) -> Difference | None:
    """That of ``test``; None where it is to pass."""
    return next((each for each in DIFFERENCES if each.tests.match(test)), None)

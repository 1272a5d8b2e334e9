"""What is checked before a model is loaded."""

from __future__ import annotations

import sys

import pytest

from tilert_stream.config import ServeConfig
from tilert_stream.errors import ConfigError
from tilert_stream.serve.all_in_one import run


def test_trio_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio", None)
    with pytest.raises(ConfigError, match=r"pip install 'tilert-stream\[trio\]'") as caught:
        run(ServeConfig(engine="scripted", backend="trio"))
    assert caught.value.param == "backend"

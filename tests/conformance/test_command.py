"""The command, its table, its files and its exit code."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from xml.etree import ElementTree

import anyio
import pytest
import trustme
from anyio import to_thread
from starlette.types import ASGIApp

from tests.conformance.faults import ignored
from tests.conformance.spoiling import Spoiled
from tilert_stream.conformance import CHECKS, Check, Report, Result, Severity, Target, Verdict
from tilert_stream.conformance.cli import main
from tilert_stream.conformance.exchange import Exchange, Request
from tilert_stream.conformance.files import to_json, to_junit
from tilert_stream.conformance.judging import evidence, printable
from tilert_stream.errors import ConfigError
from tilert_stream.http import Server, ServerSettings
from tilert_stream.testing.apps import ScriptedApp


@asynccontextmanager
async def serving(app: ASGIApp, *, certificate: str | None = None) -> AsyncGenerator[int]:
    server = Server(app, ServerSettings(port=0, ssl_certfile=certificate))
    async with anyio.create_task_group() as tasks:
        ((_, port),) = await tasks.start(server.serve)
        yield port
        server.cut()


def command(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


async def played(port: int, *arguments: str, scheme: str = "http") -> int | str | None:
    url = f"{scheme}://127.0.0.1:{port}/v1"
    return await to_thread.run_sync(lambda: command("--base-url", url, *arguments))


async def test_a_run_prints_a_table_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--json", str(tmp_path / "a.json"), "--junit", str(tmp_path / "a.xml"))
    async with serving(ScriptedApp()) as port:
        code = await played(port, "--only", "usage", "--skip", "usage.once", *files)
    assert code == 0
    shown = capsys.readouterr().out
    assert "usage.plain" in shown
    assert "usage.once" not in shown
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["model"] == "echo"
    assert written["counts"]["fail"] == 0
    assert {r["verdict"] for r in written["results"]} == {"pass"}
    suite = ElementTree.parse(tmp_path / "a.xml").getroot()
    assert suite.get("tests") == str(len(written["results"]))


async def test_a_must_that_fails_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    app = Spoiled(ScriptedApp(), ignored("stream_options"))
    async with serving(app) as port:
        code = await played(port, "--only", "usage.asked")
        may = await played(port, "--only", "usage.once")
    assert code == 1
    assert may == 0
    shown = capsys.readouterr().out
    assert "no chunk has a usage" in shown
    assert "> POST /v1/chat/completions" in shown


async def test_a_run_that_skips_everything_is_no_success(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(ScriptedApp()) as port:
        code = await played(port, "--only", "disconnect.gauge")
    assert code == 2
    assert "every check was skipped" in capsys.readouterr().err


async def test_a_server_with_tls_is_asked_through_it(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    pem = tmp_path / "server.pem"
    certificate.private_key_and_cert_chain_pem.write_to_path(pem)
    only = ("--only", "sse.done", "--only", "disconnect.reset")
    async with serving(ScriptedApp(), certificate=str(pem)) as port:
        assert await played(port, *only, "--insecure", scheme="https") == 0
        assert await played(port, *only, scheme="https") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--base-url is missing"),
        (("--base-url", "127.0.0.1"), "must be like http://"),
        (("--base-url", "http://127.0.0.1:99999"), "must be like http://"),
        (("--base-url", "http://127.0.0.1:1", "--only", "sse.dome"), "no check or theme"),
        (("--base-url", "http://127.0.0.1:1"), "nobody answers at"),
        (("--base-url", "http://127.0.0.1:1", "--timeout", "0"), "must be above 0"),
    ],
)
def test_what_cannot_be_asked_is_exit_code_2(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*arguments) == 2
    assert says in capsys.readouterr().err


def test_every_check_is_listed_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--list") == 0
    shown = capsys.readouterr().out
    assert all(check.id.split(".")[1] in shown for check in CHECKS[:3])


@pytest.mark.parametrize(
    ("given", "url", "authority"),
    [
        ("http://a:8000", "http://a:8000", "a:8000"),
        ("http://a/v1/", "http://a", "a"),
        ("https://a/llm/v1", "https://a/llm", "a"),
        ("http://[::1]:80/v1", "http://[::1]", "[::1]"),
    ],
)
def test_a_base_url_may_have_v1_or_not(given: str, url: str, authority: str) -> None:
    target = Target.parse(given, api_key="secret")
    assert (target.url, target.authority) == (url, authority)
    assert "secret" not in repr(target)


def test_a_url_of_another_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be like http://"):
        Target.parse("ftp://a")


async def _play(_session: object) -> None:
    """Is not played."""


def test_what_a_server_says_is_neither_markup_nor_control() -> None:
    hostile = "\x1b[31m \x00 [red] <b> \ud800"
    exchange = Exchange(Request(path="/v1"), 200, body=bytearray(b"\x1b[31m\x00"))
    check = Check("a.b", Severity.MUST, "shows", "why", "nothing", _play)
    result = Result(check, Verdict.FAIL, printable(hostile), evidence(exchange))
    report = Report("http://a", "m", [result])
    failure = ElementTree.fromstring(to_junit(report)).find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "must"
    assert failure.get("message") == "\\x1b[31m \\x00 [red] <b> \\ud800"
    assert json.loads(to_json(report))["results"][0]["evidence"].endswith("\\x1b[31m\\x00")

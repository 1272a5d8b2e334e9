"""A report for machines: results in, JSON or JUnit's XML out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element, SubElement, tostring

import orjson

from .check import Verdict

if TYPE_CHECKING:
    from .check import Result
    from .report import Report

__all__ = ("to_json", "to_junit")

SUITE: Final = "conformance"


def to_json(report: Report) -> bytes:
    """``{url, model, counts, results: [{id, severity, verdict, reason, evidence, …}]}``."""
    return orjson.dumps(
        {
            "url": report.url,
            "model": report.model,
            "counts": {str(verdict): report.count(verdict) for verdict in Verdict},
            "results": [_members(result) for result in report.results],
        },
        option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE,
    )


def to_junit(report: Report) -> bytes:
    """The XML that CI systems read: one suite, a test case a check.

    A failure's ``type`` is its severity.
    """
    seconds = sum(result.seconds for result in report.results)
    suite = Element(
        "testsuite",
        name=SUITE,
        hostname=report.url,
        tests=str(len(report.results)),
        failures=str(report.count(Verdict.FAIL)),
        skipped=str(report.count(Verdict.SKIP)),
        time=f"{seconds:.3f}",
    )
    for result in report.results:
        check = result.check
        theme, _, name = check.id.partition(".")
        case = SubElement(
            suite,
            "testcase",
            classname=f"{SUITE}.{theme}",
            name=name,
            time=f"{result.seconds:.3f}",
        )
        if result.verdict is Verdict.FAIL:
            failure = SubElement(case, "failure", type=check.severity, message=result.reason)
            failure.text = f"wanted: {check.shows}\nwhy: {check.why}\n{result.evidence}"
        elif result.verdict is Verdict.SKIP:
            SubElement(case, "skipped", message=result.reason)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suite, "unicode").encode()


def _members(result: Result) -> dict[str, object]:
    check = result.check
    return {
        "id": check.id,
        "severity": check.severity,
        "shows": check.shows,
        "why": check.why,
        "verdict": result.verdict,
        "reason": result.reason,
        "evidence": result.evidence,
        "seconds": round(result.seconds, 3),
        "requests": result.requests,
    }

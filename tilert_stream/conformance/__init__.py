"""Black-box checks of an OpenAI-compatible server: a base URL in, a verdict a check out.

``python -m tilert_stream.conformance --base-url URL`` runs them from a shell; ``check_server`` and
``check_app`` from code::

    report = await check_app(app, skip=("disconnect",))
    assert not report.broken(Severity.MUST)

Nothing of the server's own code is used but its sockets: the checks say as much about a peer.
"""

from .check import Check, Result, Severity, Verdict
from .checks import CHECKS, select
from .report import Report
from .runner import check_app, check_server
from .settings import Settings
from .target import Target

__all__ = (
    "CHECKS",
    "Check",
    "Report",
    "Result",
    "Settings",
    "Severity",
    "Target",
    "Verdict",
    "check_app",
    "check_server",
    "select",
)

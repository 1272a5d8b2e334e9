"""The test kit, for this project and for whoever writes a stage.

* ``assert_contract(factory)`` checks a stage against its contract.
* ``make_scope()`` gives a stage the scope of a request that runs nowhere.
* ``Gate`` holds an engine at a place until the test lets it go.
"""

from .contract import assert_contract
from .gate import Gate
from .scopes import make_request, make_scope

__all__ = ("Gate", "assert_contract", "make_request", "make_scope")

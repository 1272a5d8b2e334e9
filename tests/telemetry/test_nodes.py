"""What each node of a cluster counts of the same request."""

from __future__ import annotations

from tests.pd.cluster import Cluster
from tests.telemetry.scraped import Samples, samples
from tilert_stream.http.client import Origin

END = "requests_finished_total{finish_reason=length}"
HAND_OVER = "kv_handoff_seconds_count"


async def scrape(cluster: Cluster, origin: Origin) -> Samples:
    """Counts that are not 0, once the end is among them; of times only how many there were."""
    found: Samples = {}
    while not {END, HAND_OVER} <= found.keys():
        async with cluster.client.request(origin, "GET", "/metrics") as response:
            assert response.status == 200
            text = await response.read(1 << 20, within=60)
        found = {
            name.removeprefix("tilert_stream_"): value
            for name, value in samples(text).items()
            if value and "_bucket" not in name and not name.endswith("_seconds_sum")
        }
    return found


ALL = {
    "time_to_first_token_seconds_count": 1,
    "request_duration_seconds_count": 1,
    "queue_seconds_count": 1,
    "request_prompt_tokens_count": 1,
    "request_prompt_tokens_sum": 3,
    "request_generation_tokens_count": 1,
    "prompt_tokens_total": 3,
    HAND_OVER: 1,
    END: 1,
}
DECODED = {
    "inter_token_latency_seconds_count": 5,
    "time_per_output_token_seconds_count": 1,
    "decode_seconds_count": 1,
    "request_generation_tokens_sum": 6,
    "generation_tokens_total": 6,
}
PREFILLED = {"prefill_seconds_count": 1}
CAME = {"kv_handoff_bytes_total": 12}
"""A scripted KV cache has one token id of the prompt in four bytes."""


async def test_each_node_counts_its_part() -> None:
    async with Cluster().running() as cluster:
        answer = await cluster.ask(max_tokens=6, stream=False)
        assert answer.whole
        router = await scrape(cluster, cluster.origin)
        decode = await scrape(cluster, cluster.decode_nodes[0].origin)
        prefill = await scrape(cluster, Origin.parse(f"http://127.0.0.1:{cluster.prefill_port}"))
    assert router == ALL | DECODED | PREFILLED
    assert decode == ALL | DECODED | CAME
    first_token = {"request_generation_tokens_sum": 1, "generation_tokens_total": 1}
    assert prefill == ALL | PREFILLED | CAME | first_token

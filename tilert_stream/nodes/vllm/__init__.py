"""What our connector does inside vLLM; ``tilert_stream.nodes.vllm_connector`` is what it loads."""

"""How a KV cache leaves a prefill node, ours or vLLM: staging memory, courier, destination."""

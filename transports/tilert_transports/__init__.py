"""How a KV cache travels from prefill to decode, behind one contract."""

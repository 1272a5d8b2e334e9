"""What prefill and decode nodes tell each other about a KV cache while a transport moves it."""

"""Decode and prefill nodes as whoever sends them requests sees them."""

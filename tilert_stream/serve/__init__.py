"""``python -m tilert_stream.serve``: options in, a running server out."""

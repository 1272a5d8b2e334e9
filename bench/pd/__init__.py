"""The router beside its floor and its peers: ``python -m bench.pd``."""

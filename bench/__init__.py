"""The server beside its floor and its peers: ``python -m bench``."""

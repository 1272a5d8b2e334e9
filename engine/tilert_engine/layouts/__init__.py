"""How a KV cache travels: planes in a landing region, and the way in and out of them.

``abc`` has the contract, ``planes`` the geometry that all share; ``gqa`` is the torch engine's
layout, ``scripted`` that of the engines by script. Nothing is imported here, so that a node
without torch can name a layout.
"""

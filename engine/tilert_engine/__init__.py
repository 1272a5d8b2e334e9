"""Engines, and the owner threads that call them.

``worker`` runs jobs in turns; ``prefill_worker`` and ``decode_worker`` are its two faces;
``scripted`` computes nothing, ``torch`` real models. Imports of ``tilert_stream`` stay within its
contracts, messages, errors and completions.
"""

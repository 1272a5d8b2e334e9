"""The stages in the order of a request's life.

reserve ▸ prefill ▸ kv_import ▸ decode ▸ (mailbox) ▸ detokenize ▸ stop ▸ parse ▸ sse or plain
"""

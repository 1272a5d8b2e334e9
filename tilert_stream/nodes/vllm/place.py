"""Tensor-parallel ranks → who of them sends which part of a model's KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from tilert_stream.errors import ConfigError

__all__ = ("Place",)


@dataclass(frozen=True, slots=True)
class Place:
    """Which part of the model's KV cache a worker holds."""

    rank: int
    """The sender that it is in the layout; meaningless where it sends nothing."""
    senders: int
    """Of the whole model."""
    sends: bool
    """False where another worker has the same heads and sends them."""

    @classmethod
    def of(cls, kv_heads: int, tensor_parallel_rank: int, tensor_parallel_size: int) -> Place:
        """Share out ``kv_heads`` as vLLM does: with more ranks than heads, heads are replicated.

        :param kv_heads: 1 where all ranks have the same latents.
        :raises ~tilert_stream.errors.ConfigError: they cannot be shared out evenly.
        """
        senders = min(kv_heads, tensor_parallel_size)
        if kv_heads % senders or tensor_parallel_size % senders:
            raise ConfigError(
                f"--tensor-parallel-size is {tensor_parallel_size}, which does not share out"
                f" {kv_heads} key/value heads evenly; give a divisor or a multiple"
            )
        replicas = tensor_parallel_size // senders
        rank, replica = divmod(tensor_parallel_rank, replicas)
        return cls(rank, senders, sends=replica == 0)

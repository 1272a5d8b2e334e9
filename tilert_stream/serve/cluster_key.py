"""The cluster's key: options in, the key out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilert_stream.errors import ConfigError
from tilert_transports.control.auth import ClusterKey

if TYPE_CHECKING:
    from tilert_stream.config.cluster import ClusterOptions

__all__ = ("cluster_key",)


def cluster_key(config: ClusterOptions) -> ClusterKey | None:
    """The key of ``cluster_key``, else the first line of ``cluster_key_file``; None: there is none.

    :raises ~tilert_stream.errors.ConfigError: the file cannot be read or is empty, or the key is
        too short.
    """
    if config.cluster_key is not None:
        return ClusterKey(config.cluster_key)
    file = config.cluster_key_file
    if file is None:
        return None
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cluster_key_file {file} cannot be read: {error}.", param="cluster_key_file"
        ) from error
    if not lines or not lines[0].strip():
        raise ConfigError(
            f"cluster_key_file {file} has an empty first line; put the key there.",
            param="cluster_key_file",
        )
    return ClusterKey(lines[0].strip())

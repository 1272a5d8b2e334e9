"""A KV layout → its description in a HELLO: the engines' terms in those of the control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tilert_transports.control.layout import LayoutDescription, PlaneDescription

if TYPE_CHECKING:
    from tilert_engine.layouts.abc import KVLayout

__all__ = ("layout_description",)


def layout_description(layout: KVLayout) -> LayoutDescription:
    """What two nodes compare before anything is written.

    The model's name is part of the kind: planes of one shape do not make one model.
    """
    fields = layout.describe()
    kind, model = str(fields["kind"]), fields.get("model")
    return LayoutDescription(
        kind=kind if model is None else f"{kind} of {model}",
        version=cast("int", fields["version"]),
        dtype=str(fields["dtype"]),
        block_size=cast("int", fields.get("block_size", 1)),
        layers=cast("int", fields["layers"]),
        draft_layers=cast("int", fields.get("draft_layers", 0)),
        max_seq_len=layout.max_seq_len,
        sender_ranks=layout.sender_ranks,
        planes=tuple(
            PlaneDescription(plane.name, plane.row_tokens, plane.row_bytes)
            for plane in layout.planes
        ),
    )

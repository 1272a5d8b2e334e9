from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.small_stages import BASE, LENGTH, REQUEST, Check, Emit, Join, Loud, Spell, answer
from tilert_stream.errors import (
    PipelineError,
)
from tilert_stream.events import Finished, GenerateRequest, TextDelta, TokenBatch
from tilert_stream.pipeline import Pipeline
from tilert_stream.scope import RequestScope
from tilert_stream.testing.apps import ScriptedApp


async def test_items_go_top_to_bottom_and_the_end_comes_with_the_last() -> None:
    assert await answer(BASE.then(Spell).then(Join)) == (["0123456789[10, length]"], LENGTH)


async def test_each_request_has_stages_of_its_own() -> None:
    pipeline = BASE.then(Spell)
    assert await answer(pipeline) == await answer(pipeline)


def test_a_pipeline_does_not_change() -> None:
    before = str(BASE)
    BASE.then(Spell).insert(Join, where="after", anchor="spell")
    assert str(BASE) == before
    assert [link.name for link in BASE] == ["check", "emit"]
    assert BASE.links == tuple(BASE)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([Emit(), Check()], r"check \(a step\) cannot follow emit \(a source\)"),
        ([Check(), Spell], r"spell \(a transform\) cannot follow check \(a step\)"),
        ([Check(), Loud()], r"loud \(a stage\) cannot follow check \(a step\)"),
        ([Emit(), Spell, Check()], r"check \(a step\) cannot follow spell \(a transform\)"),
        ([Emit(), Emit()], r"emit \(a source\) cannot follow emit \(a source\)"),
        ([Emit(), Spell, Emit()], r"emit \(a source\) cannot follow spell \(a transform\)"),
        ([Spell], r"spell \(a transform\) cannot come first"),
        ([Loud()], r"loud \(a stage\) cannot come first"),
        ([Check(), Check()], r"two stages are called 'check'"),
        ([Emit(), Spell, Spell], r"two stages are called 'spell'"),
    ],
)
def test_stages_in_a_wrong_order(stages: list[object], message: str) -> None:
    pipeline: Any = Pipeline()
    for stage in stages[:-1]:
        pipeline = pipeline.then(stage)
    with pytest.raises(PipelineError, match=message):
        pipeline.then(stages[-1])


def test_what_has_fitted_does_not_let_in_what_does_not() -> None:
    """What fits behind a pipeline is remembered: by its name, its shape and what it takes."""

    class TextEncoder:
        def feed(self, item: TextDelta) -> Iterable[str]:
            return ()

        def finish(self, _outcome: Finished) -> Iterable[str]:
            return ()

    class BatchEncoder:
        def feed(self, item: TokenBatch) -> Iterable[str]:
            return ()

        def finish(self, _outcome: Finished) -> Iterable[str]:
            return ()

    class Deltas:
        def feed(self, item: TokenBatch) -> Iterable[TextDelta]:
            return ()

        def finish(self, _outcome: Finished) -> Iterable[TextDelta]:
            return ()

    unchecked: Any = BASE
    pipeline = unchecked.then(Deltas())
    for _ in range(2):
        encoded = pipeline.then(TextEncoder(), name="encode")
        assert [link.name for link in encoded] == ["check", "emit", "deltas", "encode"]
        with pytest.raises(PipelineError, match="encode"):
            pipeline.then(BatchEncoder(), name="encode")
        with pytest.raises(PipelineError, match="two stages are called 'deltas'"):
            pipeline.then(TextEncoder(), name="deltas")
        with pytest.raises(PipelineError, match="two stages are called 'encode'"):
            encoded.then(Loud(), name="encode")
        with pytest.raises(PipelineError, match=r"encode \(a step\) cannot follow"):
            pipeline.then(Check(), name="encode")


async def test_a_name_of_its_own_allows_a_stage_twice() -> None:
    pipeline = BASE.then(Spell).then(Loud()).then(Loud(), name="louder")
    assert [link.name for link in pipeline] == ["check", "emit", "spell", "loud", "louder"]
    items, _ = await answer(pipeline)
    assert items[-1] == "[10, LENGTH]"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("before", ["check", "emit", "loud", "spell", "join"]),
        ("after", ["check", "emit", "spell", "loud", "join"]),
        ("replace", ["check", "emit", "loud", "join"]),
    ],
)
def test_insert(where: Any, expected: list[str]) -> None:
    pipeline = BASE.then(Spell).then(Join).insert(Loud(), where=where, anchor="spell")
    assert [link.name for link in pipeline] == expected


def test_insert_knows_the_order_too() -> None:
    with pytest.raises(PipelineError, match=r"spell \(a transform\) cannot follow check"):
        BASE.insert(Spell, where="after", anchor="check")
    with pytest.raises(PipelineError, match=r"check \(a step\) cannot follow spell"):
        BASE.insert(Spell, where="before", anchor="check")
    with pytest.raises(PipelineError, match="two stages are called 'check'"):
        BASE.insert(Check(), where="after", anchor="check")


def test_an_unknown_anchor_lists_the_names() -> None:
    with pytest.raises(PipelineError, match="no stage 'detokenise' in this pipeline; it has"):
        BASE.insert(Spell, where="after", anchor="detokenise")
    with pytest.raises(PipelineError, match="check, emit"):
        BASE.insert(Spell, where="after", anchor="detokenise")


@pytest.mark.parametrize("pipeline", [Pipeline(), Pipeline().then(Check())])
async def test_without_a_source_nothing_can_be_opened(pipeline: Pipeline[Any]) -> None:
    with pytest.raises(PipelineError, match="has no source"):
        async with pipeline.open(REQUEST):
            pass


@pytest.mark.parametrize("stage", [3, None, object()])
def test_what_is_no_stage(stage: Any) -> None:
    with pytest.raises(PipelineError, match="is no stage"):
        BASE.then(stage)


def test_a_class_that_needs_arguments_is_told_so() -> None:
    class NeedsNode:
        def __init__(self, node: object) -> None: ...

        async def call(self, item: GenerateRequest, scope: RequestScope) -> GenerateRequest:
            return item

    pipeline: Any = Pipeline()
    with pytest.raises(PipelineError, match=r"needs_node: .* give an object"):
        pipeline.then(NeedsNode)


def make_spell(scope: RequestScope) -> Spell:
    return Spell(scope)


def anonymous(scope: RequestScope) -> object:
    return Spell(scope)


@pytest.mark.parametrize("stage", [Spell, make_spell, anonymous])
async def test_a_factory_of_any_form(stage: Any) -> None:
    items, _ = await answer(BASE.then(stage))
    assert items[-1] == "[10, length]"


async def test_an_object_serves_every_request() -> None:
    pipeline = BASE.then(Spell).then(Loud())
    assert (await answer(pipeline))[0][-1] == "[10, LENGTH]"
    assert (await answer(pipeline))[0][-1] == "[10, LENGTH]"


class TakesText:
    def __init__(self, _scope: RequestScope) -> None: ...

    def feed(self, item: TextDelta) -> Iterable[TextDelta]:
        return (item,)

    def finish(self, _outcome: Finished) -> Iterable[TextDelta]:
        return ()


def test_a_stage_placed_from_outside_must_fit_its_neighbours() -> None:
    pipeline = ScriptedApp().service.pipeline
    fits = pipeline.insert(TakesText, where="after", anchor="detokenize")
    assert [link.name for link in fits][-2:] == ["takes_text", "stop_strings"]
    with pytest.raises(
        PipelineError, match="takes TextDelta and cannot follow decode, which gives"
    ):
        pipeline.insert(TakesText, where="after", anchor="decode")

"""Answers that are held to a grammar, by the engines alone."""

from __future__ import annotations

import importlib.util
import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from tests.engine.torch.answer import GREEDY, answer
from tests.engine.torch.tiny import EOS, VOCAB, tokenizer
from tilert_engine.torch import Checkpoint, TorchDecode, TorchPrefill
from tilert_engine.torch.grammar import KEPT, Grammars, grammars_of
from tilert_engine.torch.lanes import ChainOptions
from tilert_stream.errors import EngineFault, InvalidRequest
from tilert_stream.events import Limits, Sampling
from tilert_stream.openai.grammar import answer_grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher

pytest.importorskip("llguidance")

PROMPT = [72, 101, 108, 108, 111, 44, 220]
PARAM = "structured_outputs.json"
LIMITS = Limits(40, eos_ids=frozenset({EOS}))


def of(schema: object) -> str:
    return json.dumps({"grammars": [{"json_schema": schema}]})


PAIR = of(
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": [True]}},
        "required": ["a", "b"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False},
    }
)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(tokenizer(), len(VOCAB), {EOS})


@pytest.fixture
def prefiller(checkpoint: Checkpoint, grammars: Grammars) -> TorchPrefill:
    return TorchPrefill(checkpoint, max_seq_len=64, grammars=grammars)


@pytest.fixture(params=["host", "device"])
def engine(
    request: pytest.FixtureRequest, checkpoint: Checkpoint, grammars: Grammars
) -> TorchDecode:
    chains = ChainOptions(on_device=request.param == "device", early=False, least_window=16)
    return TorchDecode(
        checkpoint, slots=1, max_seq_len=64, ar_steps=8, chains=chains, grammars=grammars
    )


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.5, seed=1), Sampling(1.0, top_p=0.5)])
def test_pd_18_what_stops_is_valid(
    prefiller: TorchPrefill, engine: TorchDecode, sampling: Sampling
) -> None:
    """The first token, which prefill draws, is the grammar's first; each counts once."""
    before = answer(prefiller, engine, PROMPT, LIMITS, GREEDY)
    for _ in range(2):
        held = replace(sampling, grammar=PAIR)
        ids, finished = answer(prefiller, engine, PROMPT, LIMITS, held)
        assert finished.reason == "stop"
        assert ids[-1] == EOS
        value = json.loads(tokenizer().decode(ids[:-1]))
        assert list(value) == ["a", "b"]
        assert value["b"] is True
        assert 0 <= value["a"] <= 9
    assert answer(prefiller, engine, PROMPT, LIMITS, GREEDY) == before, "nothing stays in the slot"


def test_pd_18_what_is_cut_says_so(prefiller: TorchPrefill, engine: TorchDecode) -> None:
    held = replace(GREEDY, grammar=PAIR)
    ids, finished = answer(prefiller, engine, PROMPT, replace(LIMITS, max_tokens=5), held)
    assert (len(ids), finished.reason) == (5, "length")


def test_penalties_within_a_grammar(prefiller: TorchPrefill, engine: TorchDecode) -> None:
    three = VOCAB.index("3")
    held = replace(GREEDY, grammar=PAIR, logit_bias=((three, 100.0),), logprobs=1)
    ids, _ = answer(prefiller, engine, PROMPT, LIMITS, held)
    assert json.loads(tokenizer().decode(ids[:-1])) == {"a": 3, "b": True}


def test_a_token_that_the_grammar_does_not_have_is_a_fault(
    prefiller: TorchPrefill, engine: TorchDecode
) -> None:
    """A first token that another prefill has drawn without it, say."""
    with pytest.raises(EngineFault, match="grammar"):
        answer(prefiller, engine, PROMPT, LIMITS, Sampling(grammar='{"grammars":[{"json_schema":5'))
    run = prefiller.open(PROMPT, LIMITS, GREEDY)
    output = prefiller.advance(run)
    assert output is not None
    with pytest.raises(EngineFault, match="grammar cannot be followed"):
        engine.open(0, output.kv, VOCAB.index("x"), LIMITS, replace(GREEDY, grammar=PAIR))
    assert answer(prefiller, engine, PROMPT, LIMITS)[1].reason in ("stop", "length")


def test_an_engine_without_grammars(checkpoint: Checkpoint) -> None:
    engine = TorchPrefill(checkpoint, max_seq_len=64)
    assert "grammar" not in engine.capabilities
    with pytest.raises(EngineFault, match="llguidance"):
        engine.open(PROMPT, LIMITS, replace(GREEDY, grammar=PAIR))


def test_without_the_library_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert grammars_of(tokenizer(), len(VOCAB), {EOS}) is not None
    assert grammars_of(tokenizer(), len(VOCAB), ()) is None, "no answer could end"

    def missing(_name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    assert grammars_of(tokenizer(), len(VOCAB), {EOS}) is None


def test_those_asked_for_last_are_kept(grammars: Grammars) -> None:
    for number in range(KEPT + 5):
        grammars.check(of({"const": number}), PARAM)
    grammars.check(of({"const": KEPT + 4}), PARAM)
    for _ in range(2):
        with pytest.raises(InvalidRequest) as caught:
            grammars.check(of({"type": "object", "properties": {"a": {"type": 5}}}), PARAM)
        assert caught.value.param == PARAM + ".properties.a"


def test_a_schema_that_only_refers_to_itself_is_refused(grammars: Grammars) -> None:
    """It compiles, and allows nothing: before a slot is taken, and without the library's state."""
    for schema in ({"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}):
        for _ in range(2):
            with pytest.raises(InvalidRequest) as caught:
                grammars.check(of(schema), PARAM)
            assert caught.value.param == PARAM
            assert "<state>" not in caught.value.message
    endless = of({"type": "object", "properties": {"a": {"$ref": "#"}}})
    grammars.check(endless, PARAM)


@pytest.mark.parametrize(
    ("source", "param"),
    [
        ("start: /(/", "f"),
        ('start: "a" %json {"type": "objec"}', "f"),
        (
            'start: "%json {" %json {"$comment": "tools[1].function.parameters", "type": "objec"}',
            "tools[1].function.parameters",
        ),
        (
            'start: %json {"type": "null"} %json {"$comment": "tools[0].function.parameters",'
            ' "properties": {"a": {"type": 5}}}',
            "tools[0].function.parameters.properties.a",
        ),
        ('start: %json {"$comment": "somebody else\'s", "type": "objec"}', "f"),
    ],
)
def test_a_fault_inside_of_a_larger_grammar(grammars: Grammars, source: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammars.check(json.dumps({"grammars": [{"lark_grammar": source}]}), "f")
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param} cannot be followed: ")


def test_one_that_becomes_too_complex_is_the_clients_fault(
    prefiller: TorchPrefill, engine: TorchDecode
) -> None:
    """It compiles, and what it allows at the beginning can be told; then the parser gives up."""
    wide = json.dumps({"grammars": [{"lark_grammar": "start: " + '("a")? ' * 5000}]})
    with pytest.raises(EngineFault) as caught:
        answer(prefiller, engine, PROMPT, LIMITS, Sampling(temperature=0, grammar=wide))
    assert (caught.value.status, caught.value.code) == (400, "grammar_fault")
    assert caught.value.message.startswith("the grammar cannot be followed: ")
    assert "<state>" not in caught.value.message
    ids, finished = answer(prefiller, engine, PROMPT, LIMITS, replace(GREEDY, grammar=PAIR))
    assert (finished.reason, bool(ids)) == ("stop", True)


def test_any_number_of_choices(grammars: Grammars) -> None:
    words = [f"w{number}" for number in range(6000)]
    grammar = answer_grammar(None, {"choice": words + words})
    assert grammar is not None
    grammars.check(grammar, PARAM)
    matcher = grammars.matcher(grammar)
    for text in "w5":
        matcher.consume(VOCAB.index(text))
    allowed = (~matcher.forbidden(torch.zeros(len(VOCAB)))).nonzero().flatten()
    assert {VOCAB[int(token)] for token in allowed} == {*"0123456789", VOCAB[EOS]}


def test_an_answer_does_not_wait_for_somebody_elses_grammar() -> None:
    begun, go_on = threading.Event(), threading.Event()
    slow = of({"const": "slow"})

    class Slow(Grammars):
        def compile(self, grammar: str) -> LLMatcher:
            if grammar == slow:
                begun.set()
                assert go_on.wait(60)
            return super().compile(grammar)

    grammars = Slow(tokenizer(), len(VOCAB), {EOS})
    compiling = threading.Thread(target=grammars.check, args=(slow, PARAM))
    compiling.start()
    try:
        assert begun.wait(60)
        grammars.matcher(PAIR).consume(VOCAB.index("{"))
    finally:
        go_on.set()
        compiling.join()

"""A frozen dataclass that is made by its slots' setters is the same in all but its speed."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest

from tilert_stream import events, sampling
from tilert_stream.events import GenerateRequest, Limits, TextDelta
from tilert_stream.openai.envelope import Envelope
from tilert_stream.slot_init import slot_init


@dataclass(frozen=True, slots=True)
class Plain:
    """Every kind of field."""

    needed: int
    given: str = "x"
    made: list[int] = field(default_factory=list[int])
    uncompared: object = field(default=None, compare=False, repr=False)
    named: int = field(default=3, kw_only=True)
    named_made: dict[str, int] = field(default_factory=dict[str, int], kw_only=True)
    named_needed: int = field(kw_only=True)


@slot_init
@dataclass(frozen=True, slots=True)
class Quick:
    """Every kind of field."""

    needed: int
    given: str = "x"
    made: list[int] = field(default_factory=list[int])
    uncompared: object = field(default=None, compare=False, repr=False)
    named: int = field(default=3, kw_only=True)
    named_made: dict[str, int] = field(default_factory=dict[str, int], kw_only=True)
    named_needed: int = field(kw_only=True)


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {"named_needed": 2}),
    ((1, "y", [5], object()), {"named_needed": 2, "named": 4, "named_made": {"a": 1}}),
    ((), {"needed": 1, "named_needed": None, "made": None}),
]
WRONG: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((1,), {"named_needed": 2, "unknown": 3}),
    ((1, "y", [], None, 5), {"named_needed": 2}),
    ((1,), {"named_needed": 2, "needed": 1}),
]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_it_holds_what_it_was_given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    plain, quick = Plain(*args, **kwargs), Quick(*args, **kwargs)
    for each in fields(Plain):
        assert getattr(quick, each.name) == getattr(plain, each.name)
    assert repr(quick) == repr(plain).replace("Plain", "Quick")
    assert quick == Quick(*args, **kwargs)


@pytest.mark.parametrize(("args", "kwargs"), WRONG)
def test_a_wrong_call_is_told_in_the_same_words(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(TypeError) as plain:
        Plain(*args, **kwargs)
    with pytest.raises(TypeError) as quick:
        Quick(*args, **kwargs)
    assert str(quick.value) == str(plain.value).replace("Plain", "Quick")


def test_it_says_what_it_takes() -> None:
    assert inspect.signature(Quick) == inspect.signature(Plain)
    assert Quick.__init__.__qualname__ == "Quick.__init__"
    assert Quick.__init__.__module__ == __name__
    assert Quick.__init__.__annotations__ == Plain.__init__.__annotations__


def test_each_object_has_a_default_of_its_own() -> None:
    first, second = Quick(1, named_needed=1), Quick(1, named_needed=1)
    assert first.made is not second.made
    assert first.named_made is not second.named_made


def test_nobody_changes_it() -> None:
    quick: Any = Quick(1, named_needed=1)
    with pytest.raises(FrozenInstanceError):
        quick.needed = 2
    with pytest.raises(FrozenInstanceError):
        del quick.given
    with pytest.raises((FrozenInstanceError, TypeError, AttributeError)):
        quick.other = 1
    assert not hasattr(quick, "__dict__")


def test_it_is_copied_and_pickled_whole() -> None:
    quick = Quick(1, "y", [2], named_needed=1)
    for made in (copy.copy(quick), copy.deepcopy(quick), pickle.loads(pickle.dumps(quick))):
        assert made == quick
    assert replace(quick, needed=5) == Quick(5, "y", [2], named_needed=1)
    assert hash(Limits(3, 1)) == hash(Limits(3, 1))


@dataclass(frozen=True, slots=True)
class Tagged(TextDelta):
    tag: str = ""


@dataclass(frozen=True)
class Noted(TextDelta):
    """As above, without slots of its own."""

    note: str = ""


class Shouted(TextDelta):
    """No dataclass of its own."""

    def __init__(self, text: str) -> None:
        super().__init__(text.upper(), (1,))


class Same(TextDelta):
    """Nothing of its own."""


def test_a_subclass_of_a_message_is_what_it_would_be() -> None:
    tagged: Any = Tagged("a", (1,), tag="b")
    assert (tagged.text, tagged.ids, tagged.tag) == ("a", (1,), "b")
    assert replace(tagged, text="c") == Tagged("c", (1,), tag="b")
    noted: Any = Noted("a", note="b")
    assert (noted.text, noted.note) == ("a", "b")
    assert (Shouted("a").text, Shouted("a").ids) == ("A", (1,))
    same: Any = Same("a", call_index=2)
    assert (same.text, same.call_index) == ("a", 2)
    for each in (tagged, noted, same):
        with pytest.raises(FrozenInstanceError):
            each.text = "d"
    assert TextDelta("a") != Same("a")


MESSAGES = [
    *(
        each
        for name in (*events.__all__, *sampling.__all__)
        if isinstance(each := getattr(events, name, None), type) and is_dataclass(each)
    ),
    Envelope,
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_made_without_a_look_up_of_its_fields(message: type[Any]) -> None:
    assert GenerateRequest in MESSAGES
    assert "__setattr__" in Plain.__init__.__code__.co_names
    assert "__setattr__" not in message.__init__.__code__.co_names
    assert "__setattr__" in message.__dict__, "it is frozen"
    assert list(inspect.signature(message).parameters) == [each.name for each in fields(message)]

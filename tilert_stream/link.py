"""One stage at its place in a pipeline: its name, its shape, and what goes in and out."""

from __future__ import annotations

import inspect
import re
import types
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from .errors import PipelineError
from .registry import load

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .scope import RequestScope

__all__ = ("Kind", "Link", "kind_of", "make_link", "where_of")


class Kind(Enum):
    """How a stage runs; see ``tilert_stream.abc``."""

    # Members are equal to nothing but themselves; Enum hashes their names, in Python.
    __hash__ = object.__hash__

    STEP = "step"
    SOURCE = "source"
    TRANSFORM = "transform"
    STAGE = "stage"


@dataclass(frozen=True, slots=True)
class Link:
    """A stage as a pipeline holds it."""

    name: str
    kind: Kind
    target: object
    """The step or source itself; for the others their ``StageFactory``."""
    takes: str
    gives: str

    @property
    def where(self) -> str:
        """The other process that does its work; empty if this one does."""
        return where_of(self.target)

    def make(self, scope: RequestScope) -> object:
        """The transform or stage of one request."""
        return cast("Callable[[RequestScope], object]", self.target)(scope)


def where_of(worker: object) -> str:
    """What a stage or a node says of where it works, such as ``prefill http://10.0.0.1:8000``.

    Whatever works in this process need not say anything.
    """
    where = getattr(worker, "where", "")
    return where if isinstance(where, str) else ""


def make_link(stage: object, name: str | None = None) -> Link:
    """Find out what ``stage`` is.

    :param stage: a step, source, transform or stage; a factory (a class, a function, a callable
        object) that makes a transform or stage per request; a registered name; ``"module:attr"``.
        A transform or stage given as an object serves every request: it must keep no state.
    :raises ~tilert_stream.errors.PipelineError: it is none of these.
    """
    reference = stage if isinstance(stage, str) else None
    if isinstance(stage, str):
        stage = load(stage)
    if name is None:
        name = reference if reference and ":" not in reference else _name_of(stage)
    if isinstance(stage, type):
        return _class_link(stage, name)
    kind = kind_of(stage)
    if kind is not None:
        takes, gives = _types_of(stage, kind)
        target = stage if kind in (Kind.STEP, Kind.SOURCE) else _Always(stage)
        return Link(name, kind, target, takes, gives)
    if callable(stage):
        return _factory_link(stage, name)
    raise PipelineError(
        f"{stage!r} is no stage: it has neither call, produce, feed and finish, nor run,"
        " and is no factory that makes one"
    )


def _class_link(cls: type[object], name: str) -> Link:
    kind = kind_of(cls)
    if kind in (Kind.STEP, Kind.SOURCE, None):
        # Steps, sources and classes whose objects are factories (such as StopStrings) are made
        # once; a name or "module:attr" may point to the class where it needs no argument.
        return make_link(_object_of(cls, name), name)
    _check_takes_scope(cls, name)
    takes, gives = _types_of(cls, kind)
    return Link(name, kind, cls, takes, gives)


def _check_takes_scope(cls: type[object], name: str) -> None:
    """Refuse a class that could not be made for any request."""
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return  # an extension's class does not say what it takes
    try:
        signature.bind(None)
    except TypeError as error:
        raise PipelineError(
            f"{name}: the class {cls.__name__} is made once a request, with the request's scope as"
            f" its only argument ({error}): give it such an __init__, or give an object of it if it"
            " keeps no state"
        ) from error


def _object_of(cls: type[object], name: str) -> object:
    try:
        return cls()
    except TypeError as error:
        raise PipelineError(
            f"{name}: the class {cls.__name__} cannot be made without arguments ({error});"
            " give an object of it"
        ) from error


def _factory_link(factory: Callable[..., object], name: str) -> Link:
    function = factory if isinstance(factory, types.FunctionType) else type(factory).__call__
    kind, takes, gives = _made_by(function)
    return Link(name, kind, factory, takes, gives)


@lru_cache(maxsize=256)
def _made_by(function: Callable[..., object]) -> tuple[Kind, str, str]:
    """What a factory makes, as its annotation says."""
    made = _written(function, "return")
    contract = _CONTRACT.match(made)
    if contract is not None:
        return Kind(contract[1].lower()), contract[2], contract[3]
    cls = getattr(function, "__globals__", {}).get(made)
    if isinstance(cls, type) and (kind := kind_of(cls)) is not None:
        return kind, *_types_of(cls, kind)
    return Kind.TRANSFORM, "?", "?"


@dataclass(frozen=True, slots=True)
class _Always:
    """A factory that gives every request the same object."""

    stage: object

    def __call__(self, _scope: RequestScope) -> object:
        return self.stage


def kind_of(stage: object) -> Kind | None:
    """What ``stage``, an object or its class, is; None: no stage."""
    if isinstance(stage, type):
        return _kind_by_methods(stage)
    cls = cast("Hashable", type(stage))
    kind = _kind_of_class(cls)
    if kind is None and _has_own_methods(stage):
        return _kind_by_methods(stage)
    return kind


def _has_own_methods(stage: object) -> bool:
    """Whether it may have methods that its class lacks; asked once a request, of its encoder."""
    own = getattr(stage, "__dict__", ())
    return not _ALL_METHODS.isdisjoint(own) or hasattr(type(stage), "__getattr__")


def _kind_by_methods(stage: object) -> Kind | None:
    # The protocols of abc say the same; asking them costs ten times as much, once a request each.
    for kind, names in _METHODS.items():
        if all(callable(getattr(stage, name, None)) for name in names):
            return kind
    return None


_METHODS = {
    Kind.STEP: ("call",),
    Kind.SOURCE: ("produce",),
    Kind.TRANSFORM: ("feed", "finish"),
    Kind.STAGE: ("run",),
}
_ALL_METHODS = frozenset(name for names in _METHODS.values() for name in names)


@lru_cache(maxsize=1024)
def _kind_of_class(cls: Hashable) -> Kind | None:
    return _kind_by_methods(cls)


def _types_of(stage: object, kind: Kind) -> tuple[str, str]:
    """What goes in and out, as the annotations say; "?" where there are none."""
    function = getattr(stage, _METHODS[kind][0])
    parameters = [name for name in getattr(function, "__annotations__", {}) if name != "return"]
    if kind is Kind.STAGE:
        written = [_payload(_written(function, name)) for name in parameters[:2]]
        return (written[0], written[1]) if len(written) == 2 else ("?", "?")
    takes = _payload(_written(function, parameters[0])) if parameters else "?"
    return takes, _payload(_written(function, "return"))


# Annotations are read as they are written: evaluating them would import what only type checkers do.
_CONTRACT = re.compile(r"(Transform|Stage)\[(.+), (.+)\]$")
_CONTAINER = re.compile(r"(?:Iterable|Iterator|Sequence|Receive|Send|list|tuple)\[(.*)\]$")


def _written(function: object, name: str) -> str:
    annotation = getattr(function, "__annotations__", {}).get(name, "?")
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation.__name__
    return re.sub(r"[\w.]+\.", "", str(annotation))


def _payload(written: str) -> str:
    """``Iterable[TextDelta | Finished]`` → ``TextDelta``."""
    parts = [part.strip() for part in _CONTAINER.sub(r"\1", written).split("|")]
    return " | ".join(part for part in parts if part not in ("Finished", "None")) or "?"


def _name_of(stage: object) -> str:
    """``DetokenizeText`` → ``detokenize_text``; a function keeps its own name."""
    given = getattr(stage, "stage_name", None)
    if isinstance(given, str):
        return given
    named = stage if isinstance(stage, type | types.FunctionType) else type(stage)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", named.__name__).lower()

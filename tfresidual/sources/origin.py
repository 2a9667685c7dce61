"""What a chain was made of, and what of it has changed since."""

from __future__ import annotations

import contextlib
import operator
import weakref
from typing import TYPE_CHECKING

import keras

from tfresidual.machine.settings import NOTHING, settings_inside, settings_of
from tfresidual.routing.losses import weights_of_losses
from tfresidual.sources.graph import has_graph

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Origin:
    """What a chain was made of: a model, which is not kept alive, and the loss of that."""

    def __init__(self, model: keras.Model, losses: Any) -> None:
        self._model = weakref.ref(model)
        self.is_compiled = model.compiled
        # A subclassed model is kept alive by its chain as it is.
        self._layers = list(model.layers)
        self._parts = _parts_of(model, self._layers)
        self._settings = self._settings_of(model)
        # The settings that change whenever the network is called, such as a count of the calls.
        self._passing: set[Any] = set()
        # The object is kept, so that no other one gets its id.
        self._loss, self._losses = (model.loss, _loss_of(model)), losses

    @property
    def weights(self) -> list[keras.Variable]:
        """All weights of the layers, also those that are not learned."""
        return self._parts["weights"]

    def change(self, losses: Any, call: Callable[[], object] | None = None) -> str | None:
        """Returns what has changed since the chain was made, in words; `None` if nothing has.

        The loss of the model is looked at only if `losses`, that of the chain, was made from it.
        `call` calls the network if there is a change: what that changes was not changed by others.
        """
        model = self._model()
        for what, now in _parts_of(model, self._layers).items():
            before = self._parts[what]
            if what == "graph" and model is None:
                continue
            is_equal = operator.eq if what == "dtype policies" else operator.is_
            if len(now) != len(before) or not all(map(is_equal, now, before)):
                return what
        setting = self._changed_setting(model, call)
        if setting is not None:
            return setting
        if model is None or losses is not self._losses or _loss_of(model) == self._loss[1]:
            return None
        return "loss"

    def _settings_of(self, model):
        """Returns the settings of all layers and models but those that compute just a graph."""
        own = [] if model is None else [model]
        return settings_of(
            layer for layer in [*own, *self._parts["layers"]] if not has_graph(layer)
        )

    def _changed_setting(self, model, call):
        """Returns an attribute that differs from what it was, in words, or `None`."""
        before, now = self._settings, self._settings_of(model)
        if model is None:
            # Those of the model itself are not known any more.
            known = set(map(id, self._parts["layers"]))
            before = {key: value for key, value in before.items() if key[0] in known}
        changed = _changed(before, now) - self._passing
        if changed and call is not None:
            # Code written by others may raise any error.
            with contextlib.suppress(Exception):
                call()
            self._passing |= _changed(now, self._settings_of(model))
            changed -= self._passing
        if not changed:
            return None
        owner, path = min(changed, key=lambda key: len(key[1]))
        names = {id(layer): layer.name for layer in [model, *self._parts["layers"]] if layer}
        return f"what {names[owner]} reads, {path}"


def _changed(before, now):
    """Returns the keys under which settings differ; Keras sets some to `None` when needed."""
    return {key for key in {*before, *now} if before.get(key, NOTHING) != now.get(key, NOTHING)}


def _loss_of(model):
    return settings_inside("loss", [model.loss, weights_of_losses(model)])


def _parts_of(model, layers):
    """Returns lists of what the structure of a model is, by name."""
    layers = layers if model is None else model.layers
    flat = [inner for layer in layers for inner in layer._flatten_layers()]
    models = [model, *(layer for layer in flat if isinstance(layer, keras.Model))]
    return {
        "layers": flat,
        "weights": [weight for layer in layers for weight in layer.weights],
        "dtype policies": [layer.dtype_policy.name for layer in flat],
        "graph": [tensor for one in models for tensor in getattr(one, "outputs", None) or []],
    }

"""Read-outs trained for the states of a network, as a Keras model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.definitions.arguments import check_choice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from tfresidual.definitions.types import Tensor

AFFINE, HEAD = "affine", "head"


class _Standardized(keras.layers.Layer):
    """A linear map of (x - shift) * scale, from 0 on, so that all sizes of x are learnt alike.

    And its control, another such map, if it has one.
    """

    def __init__(self, units, has_control, **kwargs):
        super().__init__(dtype="float32", **kwargs)
        self.units, self.has_control = units, has_control

    def build(self, input_shape):
        width, zeros = input_shape[-1], {"initializer": "zeros"}
        self.input_spec = keras.layers.InputSpec(axes={-1: width})
        self.kernel = self.add_weight((width, self.units), name="kernel", **zeros)
        self.bias = self.add_weight((self.units,), name="bias", **zeros)
        if self.has_control:
            self.control_kernel = self.add_weight(
                (width, self.units), name="control_kernel", **zeros
            )
            self.control_bias = self.add_weight((self.units,), name="control_bias", **zeros)
        self.shift = self.add_weight((width,), name="shift", trainable=False, **zeros)
        self.scale = self.add_weight((), "ones", name="scale", trainable=False)

    def standardize(self, values):
        self.shift.assign(ops.mean(values, axis=tuple(range(len(values.shape) - 1))))
        size = ops.sqrt(ops.mean(ops.square(values - self.shift)))
        self.scale.assign(ops.where(size > 0, 1 / ops.maximum(size, 1e-30), 1.0))

    def call(self, inputs, control=False):
        kernel, bias = self.kernel, self.bias
        if control:
            kernel, bias = self.control_kernel, self.control_bias
        return ops.matmul((inputs - self.shift) * self.scale, kernel) + bias


@keras.saving.register_keras_serializable(package="tfresidual")
class Readouts(keras.Model):
    """Read-outs of the states of a network, as `tfresidual.training.fit_readouts` trains them.

    Each reads the state at one place (stage, block): after that block, or, for block -1, before the
    first block of the stage. The last state has none: the network's own head reads it.

    Each has a control: of a `"head"`, another one that was trained to predict the labels of other
    images; of `"affine"` ones, the head of the network alone.

    Example:

    >>> readouts = training.fit_readouts(chain, train)
    >>> readouts.save("readouts.keras")
    >>> loaded = keras.models.load_model("readouts.keras")
    >>> loaded.places == readouts.places
    True

    Args:
        kind: `"affine"`: h + A h + b, which the head of the network takes in place of the last
            state; or `"head"`: the logits of a linear classifier.
        depths: the number of blocks of every stage of the network.
        places: pairs (stage, block), in the order of the network.
        widths: the number of channels of the state at each of the places.
        classes: the number of logits of every `"head"`; `None` for `"affine"`.
        per_position: whether a `"head"` reads every position of a state `(images, positions,
            channels)`. If not, it reads the mean of the state over all positions.
    """

    def __init__(
        self,
        kind: Literal["affine", "head"],
        depths: Sequence[int],
        places: Sequence[tuple[int, int]],
        widths: Sequence[int],
        *,
        classes: int | None = None,
        per_position: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("kind", kind, (AFFINE, HEAD))
        self.kind: str = kind
        self.depths: tuple[int, ...] = tuple(depths)
        self.places: tuple[tuple[int, int], ...] = tuple((stage, block) for stage, block in places)
        self.widths: tuple[int, ...] = tuple(widths)
        self.classes: int | None = classes
        self.per_position: bool = per_position
        self.readouts = []
        for (stage, block), width in zip(self.places, self.widths, strict=True):
            name = f"stage{stage}_block{block}" if block >= 0 else f"stage{stage}_start"
            units = width if kind == AFFINE else classes
            layer = _Standardized(units, has_control=kind == HEAD, name=name)
            layer.build((None, width))
            self.readouts.append(layer)
        self.built = True

    def read(
        self,
        place: tuple[int, int],
        state: Tensor,
        valid: Tensor | None = None,
        *,
        control: bool = False,
    ) -> Tensor:
        """Returns what is read of the state at a place.

        Args:
            place: one of `places`.
            state: `(images, ..., channels)`.
            valid: which positions of states `(images, positions, channels)` are not padding, bool,
                `(images, positions)`; `None` if all are.
            control: whether the control reads it.

        Returns:
            For `"affine"`, a state of that shape and dtype. For `"head"`, logits `(images,
            classes)`, or `(images, positions, classes)`, in float32.
        """
        if control and self.kind == AFFINE:
            return state
        layer = self.readouts[self.places.index(place)]
        found = layer(self.taken(state, valid), control=control)
        return state + ops.cast(found / layer.scale, state.dtype) if self.kind == AFFINE else found

    def taken(self, state: Tensor, valid: Tensor | None = None) -> Tensor:
        """Returns what a read-out takes of a state: all of it, or its mean over the positions."""
        state = ops.cast(state, "float32")
        axes = tuple(range(1, len(state.shape) - 1))
        if self.kind == AFFINE or self.per_position or not axes:
            return state
        if valid is None:
            return ops.mean(state, axis=axes)
        weights = ops.cast(valid, "float32")[..., None]
        count = ops.maximum(ops.sum(weights, axis=1), 1.0)
        return ops.sum(ops.where(weights > 0, state, 0.0), axis=1) / count

    def standardize(self, states: Sequence[Tensor]) -> None:
        """Has the read-outs begin at the mean and the size of what they take of some states."""
        for layer, state in zip(self.readouts, states, strict=True):
            layer.standardize(self.taken(state))

    def call(self, states: Sequence[Tensor], valid: Tensor | None = None) -> list[Tensor]:
        """Returns what is read of the states at all places, in their order; see `read`."""
        pairs = zip(self.places, states, strict=True)
        return [self.read(place, state, valid) for place, state in pairs]

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "kind": self.kind,
            "depths": self.depths,
            "places": self.places,
            "widths": self.widths,
            "classes": self.classes,
            "per_position": self.per_position,
        }

"""A block that is applied several times in a row."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.layers.applications import Counts, counts_in_use
from tfresidual.machine.tracing import gives_shapes_alone

if TYPE_CHECKING:
    from tfresidual.definitions.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="tfresidual")
class Repeated(keras.layers.Layer):
    """Applies one block again and again: `h -> block(...block(block(h)))`.

    All applications have the same weights, except those of
    `tfresidual.layers.UnsharedBatchNormalization` inside the block. The calls of each such layer
    are counted from `first` on, so that its call in the first application has the number `first`,
    that in the second one more, and so on. A `Repeated` inside the block of another one continues
    the count.

    Probes see the single applications: `tfresidual.chain` of a model finds every residual addition
    in each of them.

    Example:

    >>> from tfresidual.layers import UnsharedBatchNormalization
    >>> inputs = keras.Input((8, 8, 4))
    >>> branch = keras.layers.Conv2D(4, 3, padding="same")(inputs)
    >>> branch = UnsharedBatchNormalization(applications=3)(branch)
    >>> block = keras.Model(inputs, keras.layers.Add()([inputs, branch]))
    >>> Repeated(block, times=3)(keras.ops.ones((2, 8, 8, 4))).shape
    TensorShape([2, 8, 8, 4])

    Args:
        block: a layer or model that takes a tensor and returns one of the same shape.
        times: int, how often it is applied.
        first: int, which application the first one is, from 0 on. If a block is applied in several
            places of a model, give each `Repeated` the number of applications before it, also with
            `times=1`; otherwise each of them begins at 0. Inside the block of another `Repeated` it
            must be 0. A model in which several of them share a block is saved and loaded as it is;
            `keras.models.clone_model` makes separate blocks of it.

    Input shape:
        That of the block.

    Output shape:
        That of the input.

    Raises:
        ValueError: if an argument is invalid, or the block changes the shape.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, section 4.5.
    """

    def __init__(
        self, block: keras.layers.Layer, times: int, first: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if not isinstance(block, keras.layers.Layer):
            raise ArgumentError(
                "block",
                "be a `keras.layers.Layer`, such as a `keras.Model`",
                received=f"block={block!r} of type {type(block).__name__}",
            )
        self.block: keras.layers.Layer = block
        self.times: int = times
        self.first: int = first
        self.supports_masking = block.supports_masking

    def build(self, input_shape: Shape) -> None:
        if not self.block.built:
            # Also builds what is inside of layers without a `build` of their own.
            with Counts(is_repeated=True):
                self.block(keras.KerasTensor(input_shape, self.compute_dtype))

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        outer = counts_in_use()
        is_inside = outer is not None and outer.is_repeated
        if is_inside and self.first:
            raise ArgumentError(
                "first",
                "be 0 inside the block of another `Repeated`, whose count is continued",
                received=f"first={self.first} for {self.name}",
            )
        # For shapes alone, one application says as much as many.
        times = 1 if gives_shapes_alone() else self.times
        state = inputs
        with contextlib.nullcontext() if is_inside else Counts(self.first, is_repeated=True):
            for _ in range(times):
                state = self.applied(state, training)
        return state

    def applied(self, state: Tensor, training: bool | None = None) -> Tensor:
        """Returns what one application makes of a state.

        Raises:
            ValueError: if it changes the shape.
        """
        # `None` would hide what the call around this one says.
        result = self.block(state, **({} if training is None else {"training": training}))
        before, after = (tuple(getattr(one, "shape", ())) for one in (state, result))
        if before != after:
            raise ArgumentError(
                "block",
                "be a layer that returns one tensor of the shape that it takes",
                received=f"{self.block.name}, which returns {after} for {before}",
            )
        return result

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def compute_output_spec(self, inputs: Tensor, **kwargs: Any) -> keras.KerasTensor:
        # Computed, since dtype and shape are those of the block.
        return keras.Operation.compute_output_spec(self, inputs, **kwargs)

    def get_config(self) -> dict[str, Any]:
        # In a file, what is serialized twice gets an id, by which it is found again: the block may
        # be that of another `Repeated`, too.
        keras.saving.serialize_keras_object(self.block)
        block = keras.saving.serialize_keras_object(self.block)
        return super().get_config() | {"block": block, "times": self.times, "first": self.first}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Repeated:
        block = keras.saving.deserialize_keras_object(config["block"], custom_objects)
        return cls(**config | {"block": block})

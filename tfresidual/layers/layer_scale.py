"""Learned factors at the end of a residual branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.layers.batch_normalization import BatchNormalization

if TYPE_CHECKING:
    from tfresidual.definitions.types import DType, MultiplierName, Shape, Tensor


@keras.saving.register_keras_serializable(package="tfresidual")
class LayerScale(keras.layers.Layer):
    """Multiplies a residual branch by learned factors: `gamma * branch`.

    Put it at the end of a branch, before the addition. With small initial factors, a block is
    initially close to its shortcut. Inputs are of any rank, `(batch, ...)`.

    Example:

    >>> inputs = keras.Input((8, 8, 16))
    >>> branch = keras.layers.Conv2D(16, 3, padding="same")(inputs)
    >>> outputs = keras.layers.add([inputs, LayerScale()(branch)])

    Args:
        initial: float, initial value of the factors. The paper has 0.1 for networks of up to 18
            blocks, 1e-5 up to 24 and 1e-6 for deeper ones.
        axis: int, the axis with one factor for each of its entries, usually that of the channels;
            `None` for a single factor.

    Reference:
        Touvron et al. 2021, https://arxiv.org/abs/2103.17239, section 2 and eq. 4.
    """

    def __init__(self, initial: float = 1e-4, axis: int | None = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial: float = initial
        self.axis: int | None = axis
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        self.gamma = self.add_weight(
            shape=() if self.axis is None else (self._size(input_shape),),
            initializer=keras.initializers.Constant(self.initial),
            autocast=False,
            name="gamma",
        )
        if self.axis is not None:
            self.input_spec = keras.layers.InputSpec(axes={self.axis: self.gamma.shape[0]})
        self.built = True

    def _size(self, input_shape):
        rank = len(input_shape)
        is_axis = -rank < self.axis < rank and self.axis != 0
        size = input_shape[self.axis] if is_axis else None
        if size is None:
            raise ArgumentError(
                "axis",
                "be an axis of known size after that of the batch",
                received=f"axis={self.axis}, inputs of shape {tuple(input_shape)}",
            )
        return size

    def call(self, inputs: Tensor) -> Tensor:
        inputs = ops.cast(inputs, self.compute_dtype)
        return inputs * self._factors(len(inputs.shape), inputs.dtype)

    def after(
        self,
        layer: keras.layers.Conv2D | BatchNormalization,
        inputs: Tensor,
        training: bool | None = None,
    ) -> Tensor:
        """Returns `self(layer(inputs))`, up to rounding, for about the price of `layer(inputs)`.

        The factors are multiplied into the weights of the layer, which are much smaller than its
        outputs. It must have its channels at `axis`; a convolution must have no activation.
        """
        gamma = ops.convert_to_tensor(self.gamma)
        if isinstance(layer, BatchNormalization):
            return layer.call_multiplied(inputs, gamma, training=training)
        # Cast as the convolution itself casts it.
        kernel = ops.cast(ops.cast(layer.kernel, self.compute_dtype), self.variable_dtype)
        outputs = layer.convolution_op(inputs, ops.cast(kernel * gamma, self.compute_dtype))
        if not layer.use_bias:
            return outputs
        bias = ops.cast(ops.cast(layer.bias, self.compute_dtype), self.variable_dtype)
        shape = [1] * len(outputs.shape)
        shape[-1 if layer.data_format == "channels_last" else 1] = -1
        return outputs + ops.cast(ops.reshape(bias * gamma, shape), self.compute_dtype)

    def _factors(self, rank, dtype):
        gamma = ops.cast(ops.convert_to_tensor(self.gamma), dtype)
        if self.axis is None:
            return gamma
        shape = [1] * rank
        shape[self.axis] = -1
        return ops.reshape(gamma, shape)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"initial": self.initial, "axis": self.axis}


@keras.saving.register_keras_serializable(package="tfresidual")
class ReZero(LayerScale):
    """Multiplies a residual branch by one learned factor, which is initially 0.

    A block is then initially its shortcut. In a branch without normalization, this is SkipInit.
    Inputs are of any rank, `(batch, ...)`.

    Example:

    >>> inputs = keras.Input((8, 8, 16))
    >>> branch = keras.layers.Conv2D(16, 3, padding="same")(inputs)
    >>> outputs = keras.layers.add([inputs, ReZero()(branch)])

    Args:
        initial: float, initial value of the factor.

    Reference:
        Bachlechner et al. 2021, https://arxiv.org/abs/2003.04887. SkipInit: De and Smith 2020,
        https://arxiv.org/abs/2002.10444.
    """

    def __init__(self, initial: float = 0.0, **kwargs: Any) -> None:
        if "axis" in kwargs:
            raise ArgumentError(
                "axis",
                "not be given, since there is one factor: use `LayerScale` for one for each "
                "channel",
                kwargs["axis"],
            )
        super().__init__(initial, axis=None, **kwargs)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["axis"]
        return config


MULTIPLIERS = {"layer_scale": LayerScale, "rezero": ReZero}


def get_multiplier(
    identifier: MultiplierName | LayerScale | dict[str, Any] | None,
    axis: int,
    dtype: DType | None = None,
) -> LayerScale | None:
    """Returns a new layer, called "multiplier", made from a name, a config or a layer.

    Args:
        identifier: `"layer_scale"`, `"rezero"`, a `LayerScale` (a new layer with the same settings
            is returned), its serialized form, or `None`.
        axis: the axis of the channels, for layers with one factor per channel.
        dtype: dtype policy of the layer, `None` for that of `identifier`.
    """
    if identifier is None:
        return None
    found: Any = identifier
    if isinstance(identifier, dict):
        found = keras.saving.deserialize_keras_object(identifier)
    elif isinstance(identifier, str) and identifier in MULTIPLIERS:
        found = MULTIPLIERS[identifier]()
    if not isinstance(found, LayerScale):
        raise ArgumentError(
            "multiplier",
            f"be one of {', '.join(map(repr, MULTIPLIERS))}, a `tfresidual.layers.LayerScale` or "
            "None",
            identifier,
        )
    changed: dict[str, Any] = {"name": "multiplier"}
    if dtype is not None:
        changed["dtype"] = dtype
    if found.axis is not None:
        changed["axis"] = axis
    return type(found).from_config(found.get_config() | changed)

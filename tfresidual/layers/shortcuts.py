"""Shortcuts: layers that join the state and the branch of a unit (He et al. 2016, fig. 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.definitions.arguments import ArgumentError, check_number
from tfresidual.machine.backends import BACKEND

if BACKEND == "tensorflow":
    import tensorflow as tf

if TYPE_CHECKING:
    from tfresidual.definitions.types import DataFormat, DType, Shape, ShortcutName, Tensor


def sum_of(state: Tensor, branch: Tensor) -> Tensor:
    """Returns the sum of two tensors of one shape.

    In a graph of TensorFlow that does not know the number of images, the gradient of an addition
    asks for the shapes of both terms, for which the branch is kept until the backward pass.
    """
    if BACKEND != "tensorflow" or not all(isinstance(one, tf.Tensor) for one in (state, branch)):
        return ops.add(state, branch)
    features = state.shape[1:]
    is_known = features.is_fully_defined() and features == branch.shape[1:]
    return tf.add_n([state, branch]) if is_known else ops.add(state, branch)


class Shortcut(keras.layers.Layer):
    """Base class of all shortcuts: takes the state and the branch and returns their sum.

    Call arguments:
        state: the unit's input, `(batch, height, width, channels)`.
        branch: the residual branch's output, of the same shape.
        training: whether the call is a training step.
    """

    def build(self, state_shape: Shape, branch_shape: Shape | None = None) -> None:
        pass

    def call(self, state: Tensor, branch: Tensor, training: bool | None = None) -> Tensor:
        raise NotImplementedError

    def compute_output_shape(self, state_shape: Shape, branch_shape: Shape | None = None) -> Shape:
        return state_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config()


@keras.saving.register_keras_serializable(package="tfresidual")
class IdentityShortcut(Shortcut):
    """Adds the state itself: `state + branch`.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, fig. 2a.
    """

    def call(self, state: Tensor, branch: Tensor, training: bool | None = None) -> Tensor:
        return sum_of(state, branch)


@keras.saving.register_keras_serializable(package="tfresidual")
class ScaledShortcut(Shortcut):
    """Adds the state times a constant: `scale * state + branch_scale * branch`.

    Args:
        scale: float, factor of the state.
        branch_scale: float, factor of the branch; the paper tries 1.0 and 0.5.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, fig. 2b and eq. 6.
    """

    def __init__(self, scale: float = 0.5, branch_scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale: float = scale
        self.branch_scale: float = branch_scale

    def call(self, state: Tensor, branch: Tensor, training: bool | None = None) -> Tensor:
        return sum_of(self.scale * state, self.branch_scale * branch)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"scale": self.scale, "branch_scale": self.branch_scale}


class _GatedShortcut(Shortcut):
    """Base class with the gate `g = sigmoid(1x1 convolution of the state)`."""

    def __init__(
        self, bias: float = -6.0, data_format: DataFormat | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.bias: float = bias
        self.data_format: DataFormat = data_format or keras.config.image_data_format()

    def build(self, state_shape: Shape, branch_shape: Shape | None = None) -> None:
        self.gate = _convolution(
            self,
            state_shape,
            name="gate",
            activation="sigmoid",
            bias_initializer=keras.initializers.Constant(self.bias),
        )

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"bias": self.bias, "data_format": self.data_format}


@keras.saving.register_keras_serializable(package="tfresidual")
class ExclusiveGateShortcut(_GatedShortcut):
    """Gates both terms: `(1 - g) * state + g * branch`, `g = sigmoid(1x1 convolution of state)`.

    Args:
        bias: float, initial value of the gate's bias. The paper searches 0 to -10 and chooses -6;
            with a badly chosen bias a network fails to train.
        data_format: `"channels_last"`, `"channels_first"` or `None` for Keras' own setting.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, fig. 2c.
    """

    def call(self, state: Tensor, branch: Tensor, training: bool | None = None) -> Tensor:
        gate = self.gate(state)
        return sum_of((1.0 - gate) * state, gate * branch)


@keras.saving.register_keras_serializable(package="tfresidual")
class ShortcutOnlyGateShortcut(_GatedShortcut):
    """Gates only the state: `(1 - g) * state + branch`, `g = sigmoid(1x1 convolution of state)`.

    Args:
        bias: float, initial value of the gate's bias; at -6 the shortcut starts near the
            identity, at 0 it starts at one half.
        data_format: `"channels_last"`, `"channels_first"` or `None` for Keras' own setting.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, fig. 2d.
    """

    def call(self, state: Tensor, branch: Tensor, training: bool | None = None) -> Tensor:
        return sum_of((1.0 - self.gate(state)) * state, branch)


@keras.saving.register_keras_serializable(package="tfresidual")
class ConvolutionShortcut(Shortcut):
    """Adds a 1x1 convolution (with bias) of the state: `convolution(state) + branch`.

    Args:
        data_format: `"channels_last"`, `"channels_first"` or `None` for Keras' own setting.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, fig. 2e.
    """

    def __init__(self, data_format: DataFormat | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format: DataFormat = data_format or keras.config.image_data_format()

    def build(self, state_shape: Shape, branch_shape: Shape | None = None) -> None:
        self.convolution = _convolution(self, state_shape, name="convolution")

    def call(self, state: Tensor, branch: Tensor, training: bool | None = None) -> Tensor:
        return sum_of(self.convolution(state), branch)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"data_format": self.data_format}


@keras.saving.register_keras_serializable(package="tfresidual")
class DropoutShortcut(Shortcut):
    """Applies dropout to the state: `mask * state + branch`.

    In training, the mask is 0 for a feature with probability `rate`, else 1, drawn for each feature
    of each image. At inference, the state is multiplied by the mean of the mask, 1 - rate. The
    paper means this form, in which the shortcut has an expected scale of 0.5. With `rescale`, the
    mask is divided by its mean, as in `keras.layers.Dropout` ("inverted" dropout): the expected
    scale is 1, and the shortcut is an identity at inference.

    Args:
        rate: float in [0, 1), fraction of the state's features that are set to zero in training.
        seed: int or `None`, seed of the dropout masks. Do not set it in a network: units with the
            same seed draw the same masks.
        rescale: whether the mask is divided by 1 - rate.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, section 3.1 and fig. 2f.
    """

    def __init__(
        self, rate: float = 0.5, seed: int | None = None, rescale: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.rate: float = check_number("rate", rate, at_least=0, below=1)
        self.seed: int | None = seed
        self.rescale: bool = bool(rescale)
        self.dropout = keras.layers.Dropout(self.rate, seed=self.seed, dtype=self.dtype_policy)

    def build(self, state_shape: Shape, branch_shape: Shape | None = None) -> None:
        self.dropout.build(state_shape)

    def call(self, state: Tensor, branch: Tensor, training: bool | None = None) -> Tensor:
        kept = self.dropout(state, training=training)
        if not self.rescale:
            # Keras divides what it keeps by 1 - rate.
            kept = (1.0 - self.rate) * kept
        return sum_of(kept, branch)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "rate": self.rate,
            "seed": self.seed,
            "rescale": self.rescale,
        }


SHORTCUTS = {
    "identity": IdentityShortcut,
    "scaled": ScaledShortcut,
    "exclusive_gate": ExclusiveGateShortcut,
    "shortcut_only_gate": ShortcutOnlyGateShortcut,
    "conv1x1": ConvolutionShortcut,
    "dropout": DropoutShortcut,
}


def get_shortcut(
    identifier: ShortcutName | Shortcut | dict[str, Any],
    data_format: DataFormat | None = None,
    dtype: DType | None = None,
) -> Shortcut:
    """Returns a new shortcut layer made from a name, a config or a layer.

    Args:
        identifier: one of `SHORTCUTS`, a `Shortcut` layer (a new layer with the same settings is
            returned), or its serialized form.
        data_format: data format of the layer, if it is made from a name.
        dtype: dtype policy of the layer, if it is made from a name or a layer.
    """
    found: Any = identifier
    if isinstance(identifier, dict):
        found = keras.saving.deserialize_keras_object(identifier)
    if isinstance(found, Shortcut):
        changed = {} if dtype is None else {"dtype": dtype}
        return type(found).from_config(found.get_config() | changed)
    if found not in SHORTCUTS:
        raise ArgumentError(
            "shortcut",
            f"be one of {', '.join(map(repr, SHORTCUTS))} or a `tfresidual.layers.Shortcut`",
            found,
        )
    config = {"dtype": dtype, "name": "shortcut"}
    if "data_format" in SHORTCUTS[found]().get_config():
        config["data_format"] = data_format
    return SHORTCUTS[found](**config)


def _convolution(layer, state_shape, **kwargs):
    """Returns a built 1x1 convolution that keeps the number of channels."""
    channels_last = layer.data_format == "channels_last"
    convolution = keras.layers.Conv2D(
        state_shape[-1 if channels_last else 1],
        1,
        kernel_initializer="he_normal",
        data_format=layer.data_format,
        dtype=layer.dtype_policy,
        **kwargs,
    )
    convolution.build(state_shape)
    return convolution

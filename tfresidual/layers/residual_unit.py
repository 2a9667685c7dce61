"""The residual unit in the five layouts of He et al. 2016."""

import keras
from keras import ops

from tfresidual.layers.batch_normalization import BatchNormalization
from tfresidual.layers.pointwise_convolution import PointwiseConvolution
from tfresidual.layers.shortcuts import ConvolutionShortcut, IdentityShortcut, get_shortcut
from tfresidual.layers.subsampling import Subsampling

# Each layout is the pattern repeated for every convolution of the branch, and how many steps at
# the end of the branch stand behind the addition instead (He et al. 2016, fig. 4).
LAYOUTS = {
    "original": (("convolution", "normalization", "relu"), 1),
    "bn_after_addition": (("convolution", "normalization", "relu"), 2),
    "relu_before_addition": (("convolution", "normalization", "relu"), 0),
    "relu_only_preactivation": (("relu", "convolution", "normalization"), 0),
    "full_preactivation": (("normalization", "relu", "convolution"), 0),
}
PREACTIVATION_LAYOUTS = ("relu_only_preactivation", "full_preactivation")
RESIZES = ("projection", "zero_padding")
BOTTLENECK_REDUCTION = 4


@keras.saving.register_keras_serializable(package="tfresidual")
class ResidualUnit(keras.layers.Layer):
    """One block of a residual network: `h -> after(shortcut(h, branch(h)))`.

    The branch is two 3x3 convolutions or a bottleneck (1x1 to a quarter of the channels, 3x3,
    1x1 back). Where the unit changes the number of channels or strides, the state is first
    brought to the new shape, by a 1x1 convolution with bias or without weights. All
    convolutions have a bias.

    Example:

    >>> unit = ResidualUnit(16)
    >>> unit(keras.ops.ones((2, 8, 8, 16))).shape
    TensorShape([2, 8, 8, 16])

    Args:
        filters: int, channels of the unit's output. A bottleneck needs a multiple of 4.
        layout: order of convolution, batch normalization, ReLU and addition: `"original"`,
            `"bn_after_addition"`, `"relu_before_addition"`, `"relu_only_preactivation"` or
            `"full_preactivation"`.
        bottleneck: bool, whether the branch is a bottleneck of three convolutions.
        shortcut: how state and branch are joined: `"identity"`, `"scaled"`,
            `"exclusive_gate"`, `"shortcut_only_gate"`, `"conv1x1"`, `"dropout"`, or a
            `Shortcut` layer.
        strides: int, stride of the branch's first convolution.
        resize: how the state gets the branch's shape where the two differ: `"projection"` (1x1
            convolution with the unit's stride) or `"zero_padding"` (`Subsampling`).
        gamma_initializer: initializer of the scale of every batch normalization.
        data_format: `"channels_last"`, `"channels_first"` or `None` for Keras' own setting.

    Input shape:
        `(batch, height, width, channels)`, any height and width.

    Output shape:
        `(batch, ceil(height / strides), ceil(width / strides), filters)`.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, fig. 2 and 4.
    """

    def __init__(
        self,
        filters,
        layout="full_preactivation",
        bottleneck=False,
        shortcut="identity",
        strides=1,
        resize="projection",
        gamma_initializer="ones",
        data_format=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        _check_choice("layout", layout, LAYOUTS)
        _check_choice("resize", resize, RESIZES)
        for name, value in (("filters", filters), ("strides", strides)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"Argument `{name}` must be a positive int. Received: {name}={value!r}"
                )
        if bottleneck and filters % BOTTLENECK_REDUCTION:
            raise ValueError(
                f"Argument `filters` must be a multiple of {BOTTLENECK_REDUCTION} in a bottleneck, "
                f"which reduces to a quarter of them. Received: filters={filters}"
            )
        self.filters = filters
        self.layout = layout
        self.bottleneck = bottleneck
        self.strides = strides
        self.resize = resize
        self.gamma_initializer = keras.initializers.get(gamma_initializer)
        self.data_format = data_format or keras.config.image_data_format()
        self.shortcut = get_shortcut(shortcut, self.data_format, self.dtype_policy)

        pattern, moved = LAYOUTS[layout]
        kernels = self._kernels()
        steps = [f"{step}{i + 1}" for i in range(len(kernels)) for step in pattern]
        self._branch_steps = tuple(steps[: len(steps) - moved])
        self._joined_steps = tuple(steps[len(steps) - moved :])
        for i, (channels, kernel_size, stride) in enumerate(kernels, start=1):
            convolution = self._convolution(channels, kernel_size, stride, f"convolution{i}")
            setattr(self, f"convolution{i}", convolution)
            normalization = BatchNormalization(
                axis=self._channel_axis,
                gamma_initializer=self.gamma_initializer,
                dtype=self.dtype_policy,
                name=f"normalization{i}",
            )
            setattr(self, f"normalization{i}", normalization)

    def _kernels(self):
        """Channels, kernel size and stride of every convolution of the branch."""
        if not self.bottleneck:
            return [(self.filters, 3, self.strides), (self.filters, 3, 1)]
        inner = self.filters // BOTTLENECK_REDUCTION
        return [(inner, 1, self.strides), (inner, 3, 1), (self.filters, 1, 1)]

    def _convolution(self, filters, kernel_size, strides, name):
        options = {
            "strides": strides,
            "kernel_initializer": "he_normal",
            "data_format": self.data_format,
            "dtype": self.dtype_policy,
            "name": name,
        }
        if kernel_size == 1:
            return PointwiseConvolution(filters, **options)
        return keras.layers.Conv2D(filters, kernel_size, padding="same", **options)

    def keeps_shape(self, input_shape):
        """Whether the unit returns states of the shape it takes: only then it has an identity."""
        return self.strides == 1 and input_shape[self._channel_axis] == self.filters

    @property
    def _channel_axis(self):
        return -1 if self.data_format == "channels_last" else 1

    def build(self, input_shape):
        output_shape = self.compute_output_shape(input_shape)
        self.resizing = None
        self.joining = self.shortcut
        if not self.keeps_shape(input_shape):
            if self.resize == "projection":
                self.resizing = self._convolution(self.filters, 1, self.strides, "projection")
                # The projection is itself the 1x1 convolution that this shortcut would add.
                if isinstance(self.shortcut, ConvolutionShortcut):
                    self.joining = IdentityShortcut(dtype=self.dtype_policy)
            else:
                self.resizing = Subsampling(
                    self.filters,
                    self.strides,
                    self.data_format,
                    dtype=self.dtype_policy,
                    name="subsampling",
                )
            self.resizing.build(input_shape)
        self.joining.build(output_shape, output_shape)
        shape = input_shape
        for step in self._branch_steps:
            if not step.startswith("relu"):
                layer = getattr(self, step)
                layer.build(shape)
                shape = layer.compute_output_shape(shape)
        for step in self._joined_steps:
            if not step.startswith("relu"):
                getattr(self, step).build(output_shape)

    def call(self, inputs, training=None):
        return self.join(inputs, self.branch(inputs, training=training), training=training)

    def branch(self, inputs, training=None):
        """The residual branch F alone, before the shortcut joins it."""
        return self._apply(self._branch_steps, inputs, training)

    def join(self, inputs, branch, training=None):
        """Joins a branch's output to the unit's input, and does what follows the addition."""
        state = inputs if self.resizing is None else self.resizing(inputs)
        joined = self.joining(state, branch, training=training)
        return self._apply(self._joined_steps, joined, training)

    def _apply(self, steps, inputs, training):
        for step in steps:
            if step.startswith("relu"):
                inputs = ops.relu(inputs)
            elif step.startswith("normalization"):
                inputs = getattr(self, step)(inputs, training=training)
            else:
                inputs = getattr(self, step)(inputs)
        return inputs

    def compute_output_shape(self, input_shape):
        shape = list(input_shape)
        first = 1 if self.data_format == "channels_last" else 2
        for axis in (first, first + 1):
            shape[axis] = shape[axis] and -(-shape[axis] // self.strides)
        shape[self._channel_axis] = self.filters
        return tuple(shape)

    def get_config(self):
        return super().get_config() | {
            "filters": self.filters,
            "layout": self.layout,
            "bottleneck": self.bottleneck,
            "shortcut": keras.saving.serialize_keras_object(get_shortcut(self.shortcut)),
            "strides": self.strides,
            "resize": self.resize,
            "gamma_initializer": keras.initializers.serialize(self.gamma_initializer),
            "data_format": self.data_format,
        }


def _check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(
            f"Argument `{name}` must be one of {', '.join(map(repr, choices))}. "
            f"Received: {name}={value!r}"
        )

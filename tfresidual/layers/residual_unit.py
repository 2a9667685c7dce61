"""The residual unit in the five layouts of He et al. 2016."""

import contextlib
import contextvars
import math

import keras
import tensorflow as tf
from keras import ops

from tfresidual.arguments import check_bool, check_choice, check_int, check_number
from tfresidual.layers import spectral
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
# What a unit that shares another one's convolutions shares of its batch normalization:
# statistics, and scale and offset.
BATCH_NORMS = {
    "shared": (True, True),
    "unshared_statistics": (False, True),
    "unshared_scale": (True, False),
    "unshared": (False, False),
}
# Weights that are learned, by name; the others are statistics and states.
PARAMETERS = ("kernel", "bias", "gamma", "beta")
# Of power iteration, in a step of training, and the noise that is added to its vector.
ITERATIONS = 2
NOISE = 0.01
_is_fixed = contextvars.ContextVar("whether norms are taken as they are kept", default=False)
BOTTLENECK_REDUCTION = 4


@keras.saving.register_keras_serializable(package="tfresidual")
class ResidualUnit(keras.layers.Layer):
    """One block of a residual network: `h -> after(shortcut(h, branch(h)))`.

    Called with two tensors, `unit(h, anchor)`, it joins its branch to the second one instead:
    `after(shortcut(anchor, branch(h)))`, the block of a properly convergent stage whose input is
    the anchor.

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
        lipschitz: the largest Lipschitz constant that the branch may have, a float over 0: the
            branch is divided by `max(bound / lipschitz, 1)`, where the bound is the product of
            the spectral norms of its convolutions on their grid, batch normalization folded in.
            In use, the norms belong to the weights as they are, to 1e-3 at worst and mostly to
            1e-6: iterations from noise, run to convergence, approach them from below. They are
            kept, and sought again by the first call after the weights were changed in whatever
            way, in a copy or a saved model too. In training they follow the weights by a few
            iterations a step. `None` for a branch as it is.
        shares: a built `ResidualUnit` of the same arguments whose convolutions and shortcut this
            unit applies once more, or `None`.
        batch_norm: what a unit that shares has of its own in batch normalization: `"shared"`
            nothing, `"unshared_statistics"` the statistics, `"unshared_scale"` scale and offset,
            `"unshared"` both.
        data_format: `"channels_last"`, `"channels_first"` or `None` for Keras' own setting.

    Input shape:
        `(batch, height, width, channels)`, any height and width, which must be known where
        `lipschitz` is given.

    Output shape:
        `(batch, ceil(height / strides), ceil(width / strides), filters)`.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, fig. 2 and 4. Sharing: Jastrzebski et
        al. 2018, https://arxiv.org/abs/1710.04773, section 4.5. Lipschitz bound and anchor:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section 4.2
        and appendix E; the paper prints the divisor's quotient upside down.
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
        lipschitz=None,
        shares=None,
        batch_norm="shared",
        data_format=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_choice("layout", layout, LAYOUTS)
        check_choice("resize", resize, RESIZES)
        check_choice("batch_norm", batch_norm, BATCH_NORMS)
        lipschitz = check_number("lipschitz", lipschitz, over=0, or_none=True)
        filters = check_int("filters", filters, at_least=1)
        strides = check_int("strides", strides, at_least=1)
        bottleneck = check_bool("bottleneck", bottleneck)
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
        self.lipschitz = lipschitz
        self.batch_norm = batch_norm
        self.data_format = data_format or keras.config.image_data_format()
        # Inside of a function, since Keras would take the unit for a part of this one.
        self._shares = lambda: shares
        if shares is None:
            self.shortcut = get_shortcut(shortcut, self.data_format, self.dtype_policy)
        else:
            self._check_shared(shares)
            self.shortcut = shares.shortcut

        pattern, moved = LAYOUTS[layout]
        kernels = self._kernels()
        steps = [f"{step}{i + 1}" for i in range(len(kernels)) for step in pattern]
        self._branch_steps = tuple(steps[: len(steps) - moved])
        self._joined_steps = tuple(steps[len(steps) - moved :])
        for i, (channels, kernel_size, stride) in enumerate(kernels, start=1):
            name = f"convolution{i}"
            convolution = self._convolution(channels, kernel_size, stride, name)
            setattr(self, name, convolution if shares is None else getattr(shares, name))
            name = f"normalization{i}"
            setattr(self, name, self._normalization(name, shares))

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

    def _normalization(self, name, shares):
        statistics, scale = BATCH_NORMS[self.batch_norm]
        if shares is not None and statistics and scale:
            return getattr(shares, name)
        layer = BatchNormalization(
            axis=self._channel_axis,
            gamma_initializer=self.gamma_initializer,
            dtype=self.dtype_policy,
            name=name,
        )
        if shares is not None:
            layer.share(getattr(shares, name), statistics, scale)
        return layer

    def _check_shared(self, shares):
        names = ("filters", "layout", "bottleneck", "strides", "resize", "data_format")
        fits = isinstance(shares, ResidualUnit) and shares.built
        if not fits or any(getattr(self, name) != getattr(shares, name) for name in names):
            raise ValueError(
                "Argument `shares` must be a built `ResidualUnit` of the same "
                f"{', '.join(names)}. Received: shares={shares!r}"
            )

    def weights_by_role(self):
        """The parameters, trainable or frozen, as a dict from role: `"convolution1/kernel"`, ..."""
        names = [step for step in self._branch_steps + self._joined_steps if step[:4] != "relu"]
        layers = {name: getattr(self, name) for name in names}
        layers |= {"resizing": self.resizing, "shortcut": self.joining}
        return {
            f"{name}/{variable.path.rpartition('/')[2]}": variable
            for name, layer in layers.items()
            if layer is not None
            for variable in layer.weights
            if variable.name in PARAMETERS
        }

    def scale_branch(self, factor):
        """Multiplies the branch by a factor, in the weights of its last layer.

        A bounded branch becomes the factor times what it was, too: what it is divided by goes
        into the weights.

        Args:
            factor: float, in [0, 1] where the branch is bounded.

        Raises:
            ValueError: if the unit applies the convolutions of another.
        """
        if self.shares is not None:
            raise ValueError(
                "Only a unit with convolutions of its own can have its branch scaled. Received: "
                f"factor={factor!r} for {self.name}, which shares those of {self.shares.name}"
            )
        names = [step for step in self._branch_steps if step[:4] != "relu"]
        last = getattr(self, names[-1])
        if self.lipschitz is not None:
            factor /= self.lipschitz_bound()["divisor"]
        for name in PARAMETERS:
            variable = getattr(last, name, None)
            if variable is not None:
                variable.assign(variable * factor)

    def keeps_shape(self, input_shape):
        """Whether the unit returns states of the shape it takes: only then it has an identity."""
        return self.strides == 1 and input_shape[self._channel_axis] == self.filters

    @property
    def shares(self):
        """The unit whose convolutions this one applies once more, or `None`."""
        return self._shares()

    @property
    def _channel_axis(self):
        return -1 if self.data_format == "channels_last" else 1

    def build(self, input_shape):
        output_shape = self.compute_output_shape(input_shape)
        shares = self._shares()
        self.resizing = None
        self.joining = self.shortcut
        if shares is not None:
            own, others = tuple(input_shape)[1:], shares.shape_of_inputs[1:]
            if own != others:
                raise ValueError(
                    f"Argument `shares` must be a unit that takes inputs of shape {own}, as this "
                    f"one. Received: one that takes {others}"
                )
            self.resizing, self.joining = shares.resizing, shares.joining
        elif not self.keeps_shape(input_shape):
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
        if not self.joining.built:
            self.joining.build(output_shape, output_shape)
        self.shape_of_inputs = tuple(input_shape)
        shape, shapes = input_shape, {}
        for step in self._branch_steps:
            if step.startswith("relu"):
                continue
            layer = getattr(self, step)
            if not layer.built:
                layer.build(shape)
            shapes[step] = shape
            shape = layer.compute_output_shape(shape)
        for step in self._joined_steps:
            if not step.startswith("relu") and not getattr(self, step).built:
                getattr(self, step).build(output_shape)
        self.vectors, self.training_vectors = [], []
        if self.lipschitz is not None:
            self._make_vectors(shapes)

    def _make_vectors(self, shapes):
        """Makes the weights from which the norms come, for images of some shapes.

        Those of training, and those of everything else: so that a look at the network does not
        change how it trains. And what the bound depended on when the latter were sought.
        """
        for step, shape in shapes.items():
            if step.startswith("convolution"):
                self.vectors.append(self._vector(step, shape, ""))
                self.training_vectors.append(self._vector(step, shape, "training_"))
        self.known = self.add_weight(
            # A branch of zeros, for which all vectors are right.
            shape=(sum(math.prod(variable.shape) for variable in self._bounding()),),
            initializer="zeros",
            trainable=False,
            autocast=False,
            dtype=self.variable_dtype,
            name="known_weights",
        )
        # In a graph, the weights get their values later.
        if tf.executing_eagerly():
            self.converge(training=True)

    def _vector(self, name, shape, prefix):
        """The weight that holds a singular vector of a convolution of images of some shape."""
        convolution = getattr(self, name)
        first = 1 if self.data_format == "channels_last" else 2
        grid, channels = tuple(shape)[first : first + 2], shape[self._channel_axis]
        if None in grid:
            raise ValueError(
                "Argument `lipschitz` must be None where height and width of the images are not "
                f"known: the bound is that of their grid. Received: lipschitz={self.lipschitz} "
                f"and inputs of shape {tuple(shape)}"
            )
        # The norm of a 1x1 convolution is that of its matrix, whatever the grid.
        grid = (1, 1) if convolution.kernel_size == (1, 1) else grid
        return self.add_weight(
            shape=(1, *grid, channels),
            initializer=lambda shape, dtype=None: spectral.noise(shape),
            trainable=False,
            autocast=False,
            dtype="float32",
            name=f"{prefix}vector_of_{name}",
        )

    def call(self, inputs, anchor=None, training=None):
        branch = self.branch(inputs, training=training)
        return self.join(inputs if anchor is None else anchor, branch, training=training)

    def branch(self, inputs, training=None):
        """The residual branch F alone, before the shortcut joins it."""
        if self.lipschitz is None:
            return self._apply(self._branch_steps, inputs, training)
        given, known = tuple(inputs.shape)[1:], self.shape_of_inputs[1:]
        if given != known:
            raise ValueError(
                "Argument `inputs` must have the shape that the unit was built for, since its "
                f"bound is that of one grid: {known}. Received: inputs of shape {given}"
            )
        branch, slopes = inputs, {}
        for step in self._branch_steps:
            if step.startswith("normalization"):
                normalization = getattr(self, step)
                branch, slopes[step] = normalization.call_with_slope(branch, training=training)
            else:
                branch = self._apply([step], branch, training)
        factors = self._factors(slopes)
        find = self._training_vectors if training else self._inference_vectors
        norms = [
            spectral.operator_norm(kernel, vector, strides)
            for vector, (kernel, strides) in zip(find(factors), factors, strict=True)
        ]
        bound = ops.prod(norms)
        return branch / ops.cast(ops.maximum(bound / self.lipschitz, 1.0), branch.dtype)

    def _factors(self, slopes):
        """Kernel and stride of every convolution of the branch, batch normalization folded in.

        ReLU multiplies by zeros and ones, which commutes with the slopes of a normalization: one
        in front of the first convolution belongs to it, all others to the one before them.
        """
        factors, waiting = [], None
        for step in self._branch_steps:
            if step.startswith("convolution"):
                layer = getattr(self, step)
                # As the convolution itself takes it: rounded, in mixed precision.
                kernel = ops.cast(ops.cast(layer.kernel, self.compute_dtype), "float32")
                factors.append((spectral.folded(kernel, waiting), layer.strides[0]))
                waiting = None
            elif step.startswith("normalization"):
                slope = ops.cast(slopes[step], "float32")
                if factors:
                    kernel, strides = factors.pop()
                    factors.append((spectral.folded(kernel, output_scale=slope), strides))
                else:
                    waiting = slope
        return factors

    def _training_vectors(self, factors):
        """The vectors of the norms in a step of training, moved on by a few iterations."""
        values = []
        for vector, (kernel, strides) in zip(self.training_vectors, factors, strict=True):
            value = ops.convert_to_tensor(vector)
            # It may have become a singular vector that is not the largest one's, which iterations
            # alone would not leave.
            value += NOISE * spectral.noise(vector.shape)
            values.append(spectral.power_iteration(kernel, value, strides, ITERATIONS))
            vector.assign(values[-1])
        return values

    def _inference_vectors(self, factors):
        """The vectors of the norms without training: those kept, if they are of these weights."""
        parts = [ops.reshape(ops.cast(part, self.known.dtype), -1) for part in self._bounding()]
        current = ops.concatenate(parts)

        def kept():
            return [ops.convert_to_tensor(vector) for vector in self.vectors]

        def sought():
            values = []
            for vector, (kernel, strides) in zip(self.vectors, factors, strict=True):
                kernel, grid = ops.stop_gradient(kernel), tuple(vector.shape[1:3])
                values.append(spectral.singular_vector(kernel, grid, strides))
                vector.assign(values[-1])
            self.known.assign(current)
            return values

        if _is_fixed.get():
            return kept()
        return tf.cond(ops.all(current == ops.convert_to_tensor(self.known)), kept, sought)

    def _bounding(self):
        """All that the bound depends on at inference."""
        parts = []
        for step in self._branch_steps:
            layer = getattr(self, step, None)
            if step.startswith("convolution"):
                # As the convolution itself takes it: rounded, in mixed precision.
                parts.append(ops.cast(layer.kernel, self.compute_dtype))
            elif step.startswith("normalization"):
                parts += [layer.moving_variance, *([layer.gamma] if layer.scale else [])]
        return parts

    def converge(self, training=False):
        """Seeks the norms of the branch's convolutions if the weights changed, and keeps them.

        The first call without training after such a change does so itself; where it is a graph,
        such as that of `predict`, this is the same.

        Args:
            training: whether training goes on from there, too; otherwise it is left as it was.
        """
        if self.lipschitz is None:
            return
        self._inference_vectors(self._inference_factors())
        if training:
            for own, vector in zip(self.training_vectors, self.vectors, strict=True):
                own.assign(vector)

    def lipschitz_bound(self):
        """What is known of the branch's Lipschitz constant without training.

        Returns:
            A dict of floats: `lipschitz`, what the branch may have; `estimate`, the product of the
            convolutions' norms by power iteration, which is not over the true product;
            `residual`, the largest relative residual of the iteration, 0 where it has converged;
            `certified`, which is not under the true product; `divisor`, by which the branch is
            divided; or `None` where `lipschitz` is.
        """
        if self.lipschitz is None:
            return None
        self.converge()
        estimate, certified, largest = 1.0, 1.0, 0.0
        for vector, (kernel, strides) in zip(self.vectors, self._inference_factors(), strict=True):
            value = ops.convert_to_tensor(vector)
            estimate *= float(spectral.operator_norm(kernel, value, strides))
            largest = max(largest, float(spectral.residual(kernel, value, strides)))
            kernel = ops.convert_to_numpy(kernel)
            certified *= spectral.certified_norm(kernel, vector.shape[1:3], strides)
        return {
            "lipschitz": self.lipschitz,
            "estimate": estimate,
            "residual": largest,
            "certified": float(certified),
            "divisor": max(estimate / self.lipschitz, 1.0),
        }

    def _inference_factors(self):
        slopes = {
            step: getattr(self, step).slope()
            for step in self._branch_steps
            if step.startswith("normalization")
        }
        return self._factors(slopes)

    def join(self, inputs, branch, training=None):
        """Joins a branch's output to the unit's input, or to its anchor, and does what follows."""
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
            "lipschitz": self.lipschitz,
            "shares": self._shares() and keras.saving.serialize_keras_object(self._shares()),
            "batch_norm": self.batch_norm,
            "data_format": self.data_format,
        }

    @classmethod
    def from_config(cls, config):
        shares = config.get("shares")
        if isinstance(shares, dict):
            config = config | {"shares": keras.saving.deserialize_keras_object(shares)}
        return cls(**config)


@contextlib.contextmanager
def fixed_norms():
    """Traces units as they are now, for files of formats that know no iterations: no weight of
    such a file ever changes."""
    token = _is_fixed.set(True)
    try:
        yield
    finally:
        _is_fixed.reset(token)

"""Residual unit in the five layouts of He et al. 2016."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.definitions.arguments import (
    ArgumentError,
    check_choice,
    check_number,
)
from tfresidual.layers.batch_normalization import PARTS, BatchNormalization
from tfresidual.layers.branch_bound import BranchBound
from tfresidual.layers.divisor import built_part
from tfresidual.layers.layer_scale import LayerScale, get_multiplier
from tfresidual.layers.pointwise_convolution import PointwiseConvolution
from tfresidual.layers.scalar_bias import ScalarBias
from tfresidual.layers.shortcuts import ConvolutionShortcut, IdentityShortcut, get_shortcut
from tfresidual.layers.stochastic_depth import StochasticDepth
from tfresidual.layers.subsampling import Subsampling

if TYPE_CHECKING:
    from tfresidual.definitions.types import (
        BatchNorm,
        DataFormat,
        Initializer,
        Layout,
        MultiplierName,
        Normalization,
        Resize,
        Shape,
        ShortcutName,
        Tensor,
    )
    from tfresidual.layers.divisor import Divisor
    from tfresidual.layers.shortcuts import Shortcut

# For each layout: the pattern that is repeated for every convolution of the branch, and the number
# of operations at the end that come after the addition instead (He et al. 2016, fig. 4).
LAYOUTS = {
    "original": (("convolution", "normalization", "relu"), 1),
    "bn_after_addition": (("convolution", "normalization", "relu"), 2),
    "relu_before_addition": (("convolution", "normalization", "relu"), 0),
    "relu_only_preactivation": (("relu", "convolution", "normalization"), 0),
    "full_preactivation": (("normalization", "relu", "convolution"), 0),
}
PREACTIVATION_LAYOUTS = ("relu_only_preactivation", "full_preactivation")
RESIZES = ("projection", "zero_padding")
# The parts of batch normalization that a unit shares with that whose convolutions it shares.
BATCH_NORMS = {
    "shared": PARTS,
    "unshared_statistics": ("gamma", "beta"),
    "unshared_scale": ("statistics",),
    "unshared": (),
}
# What takes the places of normalization in a branch.
NORMALIZATIONS = ("batch", "fixup")
# Names of the weights that are learned; all other weights are statistics and states.
PARAMETERS = ("kernel", "bias", "gamma", "beta")
BOTTLENECK_REDUCTION = 4


@keras.saving.register_keras_serializable(package="tfresidual")
class ResidualUnit(keras.layers.Layer):
    """One block of a residual network: `h -> after(shortcut(h, branch(h)))`.

    Called with two tensors, `unit(h, anchor)`, it joins its branch to the second tensor, as the
    block of a properly convergent stage does: `after(shortcut(anchor, branch(h)))`.

    The branch is two 3x3 convolutions or a bottleneck (1x1 to a quarter of the channels, 3x3, 1x1
    back). If the unit changes the number of channels or has a stride, the state is first brought to
    the new shape, either by a 1x1 convolution or without weights. All convolutions have a bias.

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
        shortcut: how the state and the branch are joined: `"identity"`, `"scaled"`,
            `"exclusive_gate"`, `"shortcut_only_gate"`, `"conv1x1"`, `"dropout"`, or a `Shortcut`
            layer.
        strides: int, stride of the branch's first convolution. At even sizes, a 3x3 convolution
            of stride 2 is centred one pixel beside a 1x1 shortcut of stride 2: Keras pads at the
            end for `padding="same"`, where PyTorch pads both sides.
        resize: how the state is brought to the branch's shape if the two differ: `"projection"`
            (1x1 convolution with the unit's stride) or `"zero_padding"` (`Subsampling`).
        gamma_initializer: initializer of the scale of every batch normalization.
        lipschitz: the largest Lipschitz constant that the branch may have, a float over 0, or
            `None`. The branch is divided by `max(bound / lipschitz, 1)`, where the bound is the
            product of the norms of its convolutions on their grid, with batch normalization folded
            in. `Bounded` says how exact they are and when they are computed.
        shares: a built `ResidualUnit` with the same arguments whose convolutions and shortcut this
            unit reuses, or `None`.
        batch_norm: which parts of batch normalization a unit with `shares` does not share:
            `"shared"`: none; `"unshared_statistics"`: the statistics; `"unshared_scale"`: scale and
            offset; `"unshared"`: both.
        data_format: `"channels_last"`, `"channels_first"` or `None` for Keras' own setting.
        normalization: `"batch"`; `None` for a branch without normalization; or `"fixup"`: in its
            place, the branch has `ScalarBias` before each convolution and ReLU, and a factor,
            initially 1, at its end. Its convolutions have no other bias. The kernel of the last one
            is initially 0, those of the others are scaled by `blocks ** (-1 / (2 m - 2))` for a
            branch of m convolutions.
        multiplier: learned factors at the end of the branch: `"layer_scale"`, `"rezero"` (without
            normalization, this is SkipInit), a `LayerScale` or `None`. Not with `lipschitz` or
            `"fixup"`, which has a factor of its own.
        stochastic_depth: float in [0, 1), probability with which the branch of an image is dropped
            in training, see `StochasticDepth`. A bound by `lipschitz` is that at inference.
        blocks: int, number of blocks in the whole network; only `"fixup"` needs it.

    Input shape:
        `(batch, height, width, channels)`. Height and width must be known for `lipschitz`.

    Output shape:
        `(batch, ceil(height / strides), ceil(width / strides), filters)`.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, fig. 2 and 4. Sharing: Jastrzebski et al.
        2018, https://arxiv.org/abs/1710.04773, section 4.5. Lipschitz bound and anchor: "Iterative
        convergent computation is not a useful inductive bias for ResNets", section 4.2 and appendix
        E; the quotient in the divisor is inverted in the paper. Fixup: Zhang et al. 2019,
        https://arxiv.org/abs/1901.09321, section 3.
    """

    def __init__(
        self,
        filters: int,
        layout: Layout = "full_preactivation",
        bottleneck: bool = False,
        shortcut: ShortcutName | Shortcut | dict[str, Any] = "identity",
        strides: int = 1,
        resize: Resize = "projection",
        gamma_initializer: Initializer = "ones",
        lipschitz: float | None = None,
        shares: ResidualUnit | None = None,
        batch_norm: BatchNorm = "shared",
        data_format: DataFormat | None = None,
        normalization: Normalization = "batch",
        multiplier: MultiplierName | LayerScale | dict[str, Any] | None = None,
        stochastic_depth: float = 0.0,
        blocks: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("layout", layout, LAYOUTS)
        check_choice("resize", resize, RESIZES)
        check_choice("batch_norm", batch_norm, BATCH_NORMS)
        if normalization is not None:
            check_choice("normalization", normalization, NORMALIZATIONS)
        self.filters: int = filters
        self.layout: Layout = layout
        self.bottleneck: bool = bool(bottleneck)
        if bottleneck and filters % BOTTLENECK_REDUCTION:
            raise ArgumentError(
                "filters",
                f"be a multiple of {BOTTLENECK_REDUCTION} in a bottleneck, which reduces to a "
                "quarter of them",
                filters,
            )
        self.strides: int = strides
        self.resize: Resize = resize
        self.gamma_initializer: keras.initializers.Initializer = keras.initializers.get(
            gamma_initializer
        )
        self.lipschitz: float | None = check_number("lipschitz", lipschitz, over=0, or_none=True)
        # Made when the shapes are known.
        self._bound: Any = None
        self.batch_norm: BatchNorm = batch_norm
        self.data_format: DataFormat = data_format or keras.config.image_data_format()
        self.normalization: Normalization = normalization
        self.stochastic_depth: float = check_number(
            "stochastic_depth", stochastic_depth, at_least=0, below=1
        )
        self.blocks: int = blocks
        # Hidden in a function, since Keras would track a unit in an attribute as a sublayer.
        self._shares = lambda: shares
        if shares is None:
            self.shortcut = get_shortcut(shortcut, self.data_format, self.dtype_policy)
            self.multiplier = self._multiplier(multiplier)
        else:
            self._check_shared(shares)
            self.shortcut = shares.shortcut
            self.multiplier = shares.multiplier
        self.dropping = None
        if self.stochastic_depth > 0:
            self.dropping = StochasticDepth(
                self.stochastic_depth, dtype=self.dtype_policy, name="stochastic_depth"
            )

        kernels = self._kernels()
        self._branch_operations, self._joined_operations = self._operations(len(kernels))
        # What is right before the factors, if they can be multiplied into its weights.
        pairs = itertools.pairwise(self._branch_operations)
        last = next((first for first, second in pairs if second == "multiplier"), "")
        self._multiplied = "" if last.startswith("relu") else last
        for i, (channels, kernel_size, stride) in enumerate(kernels, start=1):
            name = f"convolution{i}"
            convolution = self._convolution(channels, kernel_size, stride, name)
            setattr(self, name, convolution if shares is None else getattr(shares, name))
            if normalization == "batch":
                name = f"normalization{i}"
                setattr(self, name, self._normalization(name, shares))
        for name in self._branch_operations:
            if name.startswith("scalar_bias"):
                layer = ScalarBias(dtype=self.dtype_policy, name=name)
                setattr(self, name, layer if shares is None else getattr(shares, name))

    def _multiplier(self, identifier):
        """Returns the layer of factors at the end of the branch, or `None`."""
        is_fixup = self.normalization == "fixup"
        if identifier is not None and (is_fixup or self.lipschitz is not None):
            raise ArgumentError(
                "multiplier",
                'be None for a bounded branch and with `normalization="fixup"`',
                received=f"multiplier={identifier!r}, lipschitz={self.lipschitz}, "
                f"normalization={self.normalization!r}",
            )
        if is_fixup and self.lipschitz is not None:
            raise ArgumentError(
                "lipschitz",
                'be None with `normalization="fixup"`, whose factor at the end of the branch '
                "would change the bound",
                lipschitz=self.lipschitz,
            )
        if is_fixup:
            identifier = LayerScale(1.0, axis=None, name="multiplier")
        return get_multiplier(identifier, self._channel_axis, self.dtype_policy)

    def _operations(self, convolutions):
        """Returns the operations of the branch and those after the addition, as tuples."""
        pattern, moved = LAYOUTS[self.layout]
        operations = [f"{operation}{i + 1}" for i in range(convolutions) for operation in pattern]
        end = len(operations) - moved
        branch, joined = operations[:end], operations[end:]
        if self.normalization != "batch":
            branch, joined = (
                [operation for operation in part if operation[:4] in ("conv", "relu")]
                for part in (branch, joined)
            )
        if self.normalization == "fixup":
            biases = [f"scalar_bias{i}" for i in range(1, len(branch) + 2)]
            branch = [each for pair in zip(biases, branch, strict=False) for each in pair]
        branch += [] if self.multiplier is None else ["multiplier"]
        if self.normalization == "fixup" and joined:
            branch.append(biases[-1])
        return tuple(branch), tuple(joined)

    def _kernels(self):
        """Returns the channels, kernel size and stride of every convolution of the branch."""
        if not self.bottleneck:
            return [(self.filters, 3, self.strides), (self.filters, 3, 1)]
        inner = self.filters // BOTTLENECK_REDUCTION
        return [(inner, 1, self.strides), (inner, 3, 1), (self.filters, 1, 1)]

    def _convolution(self, filters, kernel_size, strides, name):
        initializer = "he_normal"
        if self.normalization == "fixup" and name != "projection":
            m = len(self._kernels())
            initializer = (
                keras.initializers.Zeros()
                if name == f"convolution{m}"
                # He's, with the standard deviation scaled by blocks ** (-1 / (2 m - 2)).
                else keras.initializers.VarianceScaling(2 * self.blocks ** (-1 / (m - 1)))
            )
        options = {
            "strides": strides,
            "kernel_initializer": initializer,
            "use_bias": self.normalization != "fixup" or name == "projection",
            "data_format": self.data_format,
            "dtype": self.dtype_policy,
            "name": name,
        }
        if kernel_size == 1:
            return PointwiseConvolution(filters, **options)
        return keras.layers.Conv2D(filters, kernel_size, padding="same", **options)

    def _normalization(self, name, shares):
        parts = BATCH_NORMS[self.batch_norm]
        if shares is not None and parts == PARTS:
            return getattr(shares, name)
        layer = BatchNormalization(
            axis=self._channel_axis,
            gamma_initializer=self.gamma_initializer,
            dtype=self.dtype_policy,
            name=name,
        )
        if shares is not None:
            layer.share(getattr(shares, name), parts)
        return layer

    def _check_shared(self, shares):
        names = (
            *("filters", "layout", "bottleneck", "strides", "resize", "data_format"),
            "normalization",
        )
        fits = isinstance(shares, ResidualUnit) and shares.built
        if not fits or any(getattr(self, name) != getattr(shares, name) for name in names):
            raise ArgumentError(
                "shares", f"be a built `ResidualUnit` of the same {', '.join(names)}", shares
            )

    def layers_by_role(self) -> dict[str, keras.layers.Layer]:
        """Returns the layers that the unit needs at inference by role, such as `"convolution1"`."""
        names = [
            operation
            for operation in self._branch_operations + self._joined_operations
            if operation[:4] != "relu"
        ]
        layers = {name: getattr(self, name) for name in names}
        layers |= {"resizing": self.resizing, "shortcut": self.joining}
        return {name: layer for name, layer in layers.items() if layer is not None}

    def weights_by_role(self) -> dict[str, keras.Variable]:
        """Returns the parameters, trainable or frozen, by role, such as `"convolution1/kernel"`."""
        return {
            f"{name}/{variable.path.rpartition('/')[2]}": variable
            for name, layer in self.layers_by_role().items()
            for variable in layer.weights
            if variable.name in PARAMETERS
        }

    def scale_branch(self, factor: float) -> None:
        """Multiplies the branch by a factor, by changing the weights of its last layer.

        A bounded branch is multiplied by the factor, too: its divisor is moved into the weights.

        Args:
            factor: float, in [0, 1] if the branch is bounded.

        Raises:
            ValueError: if the unit shares the convolutions of another unit.
        """
        if self.shares is not None:
            raise ArgumentError(
                "factor",
                "be given to a unit with convolutions of its own",
                received=f"factor={factor!r} for {self.name}, which shares those of "
                f"{self.shares.name}",
            )
        names = [operation for operation in self._branch_operations if operation[:4] != "relu"]
        bound = self.lipschitz_bound()
        if bound is not None:
            factor /= bound["divisor"]
        for operation in reversed(names):
            last = getattr(self, operation)
            for name in PARAMETERS:
                variable = getattr(last, name, None)
                if variable is not None:
                    variable.assign(variable * factor)
            # What is before an added number has to be multiplied, too.
            if not isinstance(last, ScalarBias):
                break

    def keeps_shape(self, input_shape: Shape) -> bool:
        """Returns whether the output has the shape of the input; only then is there an identity."""
        return self.strides == 1 and input_shape[self._channel_axis] == self.filters

    @property
    def shares(self) -> ResidualUnit | None:
        """The unit whose convolutions this unit shares, or `None`."""
        return self._shares()

    @property
    def _channel_axis(self):
        return -1 if self.data_format == "channels_last" else 1

    def build(self, input_shape: Shape) -> None:
        output_shape = self.compute_output_shape(input_shape)
        shares = self._shares()
        self.resizing = None
        self.joining = self.shortcut
        if shares is not None:
            own, others = tuple(input_shape)[1:], shares.shape_of_inputs[1:]
            if own != others:
                raise ArgumentError(
                    "shares",
                    f"be a unit that takes inputs of shape {own}, as this one does",
                    received=f"one that takes {others}",
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
        self.shape_of_inputs: Shape = tuple(input_shape)
        shape, shapes = input_shape, {}
        for operation in self._branch_operations:
            shapes[operation] = shape
            if operation.startswith("relu"):
                continue
            layer = getattr(self, operation)
            if not layer.built:
                layer.build(shape)
            shape = layer.compute_output_shape(shape)
        for operation in self._joined_operations:
            if not operation.startswith("relu") and not getattr(self, operation).built:
                getattr(self, operation).build(output_shape)
        if self.lipschitz is not None:
            self._bound = self._bound_for(shapes)

    def _bound_for(self, shapes):
        """Returns the bound of the branch, for the shapes of the inputs of its operations."""
        if any(None in tuple(shape)[1:] for shape in shapes.values()):
            raise ArgumentError(
                "lipschitz",
                "be None if the height and width of the images are unknown, since the bound "
                "depends on their grid",
                received=f"lipschitz={self.lipschitz} and inputs of shapes {list(shapes.values())}",
            )
        return BranchBound(
            self,
            lambda: self.lipschitz,
            [getattr(self, name, ops.relu) for name in shapes],
            list(shapes.values()),
            [name for name in shapes if name.startswith("convolution")],
        )

    @property
    def divisor(self) -> Divisor | None:
        """What holds the norms of a bounded branch, or `None`."""
        return None if self._bound is None else self._bound.divisor

    def call(
        self, inputs: Tensor, anchor: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        branch = self.branch(inputs, training=training)
        return self.join(inputs if anchor is None else anchor, branch, training=training)

    def branch(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Returns the residual branch F alone, before the shortcut joins it."""
        if self.lipschitz is None:
            branch = self._run(self._branch_operations, inputs, training)
        else:
            branch = self._bound.run(inputs, training)
        return branch if self.dropping is None else self.dropping(branch, training=training)

    def converge(self, training: bool = False) -> None:
        """Computes and stores the norms of the convolutions; see `Bounded.converge`."""
        if self.lipschitz is not None:
            built_part(self, self._bound).converge(training)

    def lipschitz_bound(self) -> dict[str, float] | None:
        """Returns what `Bounded.lipschitz_bound` does, or `None` if `lipschitz` is `None`."""
        if self.lipschitz is None:
            return None
        return built_part(self, self._bound).report()

    def join(self, inputs: Tensor, branch: Tensor, training: bool | None = None) -> Tensor:
        """Joins the branch to the unit's input or anchor and applies what follows the addition."""
        state = inputs if self.resizing is None else self.resizing(inputs)
        joined = self.joining(state, branch, training=training)
        return self._run(self._joined_operations, joined, training)

    def _run(self, operations, inputs, training):
        for operation in operations:
            if operation.startswith("relu"):
                inputs = ops.relu(inputs)
            elif operation == self._multiplied:
                inputs = self.multiplier.after(getattr(self, operation), inputs, training)
            elif operation == "multiplier" and self._multiplied:
                continue
            elif operation.startswith("normalization"):
                inputs = getattr(self, operation)(inputs, training=training)
            else:
                inputs = getattr(self, operation)(inputs)
        return inputs

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        shape = list(input_shape)
        if self._bound is not None:
            self._bound.check_shape(shape)
        first = 1 if self.data_format == "channels_last" else 2
        for axis in (first, first + 1):
            size = shape[axis]
            shape[axis] = size and -(-size // self.strides)
        shape[self._channel_axis] = self.filters
        return tuple(shape)

    def get_config(self) -> dict[str, Any]:
        shares = self.shares
        # Fixup's own is no argument.
        multiplier = None if self.normalization == "fixup" else self.multiplier
        return super().get_config() | {
            "filters": self.filters,
            "layout": self.layout,
            "bottleneck": self.bottleneck,
            "shortcut": keras.saving.serialize_keras_object(get_shortcut(self.shortcut)),
            "strides": self.strides,
            "resize": self.resize,
            "gamma_initializer": keras.initializers.serialize(self.gamma_initializer),
            "lipschitz": self.lipschitz,
            "shares": shares and keras.saving.serialize_keras_object(shares),
            "batch_norm": self.batch_norm,
            "data_format": self.data_format,
            "normalization": self.normalization,
            "multiplier": multiplier and keras.saving.serialize_keras_object(multiplier),
            "stochastic_depth": self.stochastic_depth,
            "blocks": self.blocks,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ResidualUnit:
        shares = config.get("shares")
        if isinstance(shares, dict):
            config = config | {"shares": keras.saving.deserialize_keras_object(shares)}
        return cls(**config)

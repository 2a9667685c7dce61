"""A branch of layers with a bounded Lipschitz constant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from tfresidual.definitions.arguments import ArgumentError, check_number
from tfresidual.layers.branch_bound import BranchBound, is_normalization
from tfresidual.layers.divisor import built_part
from tfresidual.layers.linear import check_linear, dtype_of, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tfresidual.definitions.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="tfresidual")
class Bounded(keras.layers.Layer):
    """Layers one after the other, divided so that their Lipschitz constant is at most a bound.

    The branch F is replaced by `F / max(constant / bound, 1)`, where the constant is the product of

    - the norms of all linear layers on their grid, as in `SpectralNormalization`, with batch
      normalization folded in: that of diag(slope 2) T diag(slope 1) for a layer T between two of
      them. Its slopes are gamma / sqrt(variance + epsilon), at inference with the moving variance
      and in training with that of the batch;
    - the largest slopes of the activations, 1 for ReLU, and the constants of the other layers.

    This is what `ResidualUnit(lipschitz=...)` does. The divisor divides the biases as well. With a
    bound under 1, `x + F(x)` is invertible, and `x + F(z)` iterated in z has one fixed point.

    How exact the norms are and when they are computed is described in `SpectralNormalization`. In
    training, the statistics of a batch count as constants, and dropout as the identity, so that
    training and inference have the same divisor.

    Example:

    >>> branch = [keras.layers.BatchNormalization(), keras.layers.ReLU(),
    ...           keras.layers.Conv2D(8, 3, padding="same")]
    >>> layer = Bounded(branch, bound=0.95)
    >>> layer(keras.ops.ones((2, 6, 6, 8))).shape
    TensorShape([2, 6, 6, 8])

    Args:
        branch: list of layers or a `keras.Sequential`, of which the layers are used: layers that
            `SpectralNormalization` takes, at least one; batch normalization; `Activation`, `ReLU`,
            `LeakyReLU` and `ELU`; pooling, padding, cropping and nearest-neighbour upsampling;
            `Flatten`, `Reshape`, `Permute`; dropout. Activations are those of
            `keras.activations` with a known largest slope: all but softmax, log_softmax, sparsemax,
            exponential, glu, mish, hard_shrink and threshold.
        bound: the largest Lipschitz constant that the branch may have, a float over 0.
        **kwargs: the other arguments of `keras.layers.Layer`. The dtype is that of the layers.

    Input shape:
        That of the first layer, with known spatial sizes.

    Raises:
        ValueError: if a layer has no known constant, is quantized or has LoRA, or, when it is built
            or called, if the shape of its inputs is not known or has changed.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section 4.2;
        the quotient in the divisor is inverted in the paper. Behrmann et al. 2019,
        https://arxiv.org/abs/1811.00995: invertible residual networks.
    """

    def __init__(
        self,
        branch: Sequence[keras.layers.Layer] | keras.Sequential,
        bound: float = 0.95,
        **kwargs: Any,
    ) -> None:
        layers = _flat(branch)
        for layer in layers:
            if is_normalization(layer):
                _check_normalization(layer)
            elif kind_of(layer) is not None:
                check_linear("branch", layer)
        if not any(kind_of(layer) is not None for layer in layers):
            raise ArgumentError(
                "branch",
                "hold a layer with a kernel",
                received=f"layers of the classes {[type(layer).__name__ for layer in layers]}",
            )
        super().__init__(**kwargs | {"dtype": dtype_of(layers, kwargs.get("dtype"))})
        self.branch: list[keras.layers.Layer] = layers
        self.bound: float = check_number("bound", bound, over=0)
        self._bound: Any = None

    def build(self, input_shape: Shape) -> None:
        shape, shapes, names = tuple(input_shape), [], []
        if None in shape[1:]:
            raise ArgumentError(
                "branch",
                "get inputs of a known shape, since its bound depends on their grid",
                received=f"inputs of shape {shape}",
            )
        for place, layer in enumerate(self.branch):
            if not layer.built:
                layer.build(shape)
            shapes.append(shape)
            if kind_of(layer) is not None:
                names.append(f"layer{place}")
            shape = tuple(layer.compute_output_shape(shape))
        self.shape_of_inputs: Shape = tuple(input_shape)
        self._bound = BranchBound(self, lambda: self.bound, self.branch, shapes, names)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        return self._bound.run(inputs, training, self._bound.is_frozen())

    def converge(self, training: bool = False) -> None:
        """Computes and stores the norms if the weights changed.

        The first inference call after such a change does the same, also in a graph such as that of
        `predict`.

        Args:
            training: whether training continues from these norms as well; otherwise its own vectors
                are left unchanged.
        """
        built_part(self, self._bound).converge(training)

    def lipschitz_bound(self) -> dict[str, float]:
        """Returns bounds and estimates of the branch's Lipschitz constant at inference.

        Returns:
            A dict of floats: `lipschitz`, the largest constant allowed; `estimate`, the product of
            norms and other constants as computed by iteration, which does not exceed the true
            product; `residual`, the largest relative residual of the iterations, 0 after full
            convergence; `certified`, an upper bound of the true product, computed in float64;
            `divisor`, by which the branch is divided.
        """
        return built_part(self, self._bound).report()

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        shape = tuple(input_shape)
        if self.built:
            self._bound.check_shape(shape)
        for layer in self.branch:
            shape = tuple(layer.compute_output_shape(shape))
        return shape

    def get_config(self) -> dict[str, Any]:
        layers = list(dict.fromkeys(self.branch))
        branch = [keras.saving.serialize_keras_object(layer) for layer in layers]
        config = super().get_config() | {"branch": branch, "bound": self.bound}
        if len(layers) < len(self.branch):
            # Which of them is where, since some are there several times.
            config["places"] = [layers.index(layer) for layer in self.branch]
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Bounded:
        config = dict(config)
        branch = [keras.saving.deserialize_keras_object(layer) for layer in config["branch"]]
        places = config.pop("places", range(len(branch)))
        config["branch"] = [branch[place] for place in places]
        return cls(**config)


def _flat(branch):
    """Returns the layers of a list or a `Sequential`, also of those within it."""
    if isinstance(branch, keras.Sequential):
        branch = branch.layers
    if not isinstance(branch, (list, tuple)) or not all(
        isinstance(layer, keras.layers.Layer) for layer in branch
    ):
        raise ArgumentError("branch", "be a list of layers or a `keras.Sequential`", branch)
    layers = []
    for layer in branch:
        layers += _flat(layer) if isinstance(layer, keras.Sequential) else [layer]
    return [layer for layer in layers if not isinstance(layer, keras.layers.InputLayer)]


def _check_normalization(layer):
    if layer.renorm or layer.synchronized or not isinstance(layer.axis, int):
        raise ArgumentError(
            "branch",
            "hold batch normalization along one axis, without `renorm` and `synchronized`",
            received=f"{layer.name!r} with axis={layer.axis!r}, "
            f"renorm={layer.renorm} and "
            f"synchronized={layer.synchronized}",
        )

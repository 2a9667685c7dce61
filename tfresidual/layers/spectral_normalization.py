"""Wrapper that bounds the norm of a layer's linear part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.definitions.arguments import ArgumentError, check_number
from tfresidual.layers.divisor import Divisor, built_part
from tfresidual.layers.linear import check_linear, dtype_of, linear_part
from tfresidual.machine import backends

if TYPE_CHECKING:
    from tfresidual.definitions.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="tfresidual")
class SpectralNormalization(keras.layers.Wrapper):
    """Divides the linear part of a layer by `max(norm / bound, 1)`, so that its norm is bounded.

    The norm is that of the layer as a linear operator on the grid of its inputs, with its padding,
    strides, dilation, groups and data format: the largest factor by which it lengthens an input.
    (`keras.layers.SpectralNormalization` divides by the norm of the kernel reshaped to a matrix,
    which does not bound that of a convolution.) A layer whose norm is under the bound is left
    unchanged. The bias is not divided, and the activation is applied afterwards: the Lipschitz
    constant of the whole layer is at most the bound times that of its activation, such as 1 for
    ReLU or 1.13 for GELU.

    At inference, the norm is that of the current weights, with a relative error of at most 1e-3 and
    mostly about 1e-6. It is computed by iterations from noise, run to convergence, which approach
    it from below. It is stored, and computed again by the first call after any change of the
    weights, also in a copy or a saved model. In training, a few iterations per step keep it up to
    date; a frozen layer uses the same norm as at inference. Gradients flow through the norm. No
    weights of the layer are overwritten, and the layer may be applied several times in a step.

    In mixed precision, the norm is that of the kernel in the compute dtype, in float32; the kernel
    that is divided by it is rounded once more. On JAX, compiled inference compiles the iterations
    of every layer; call `converge` and use `layers.fixed_norms` to avoid this. In functions that
    JAX traces without knowing the variables, such as `jax.jit(layer)`, norms are not stored.
    `tf.vectorized_map` needs `layers.fixed_norms`.

    Example:

    >>> layer = SpectralNormalization(keras.layers.Conv2D(16, 3, padding="same"), bound=0.95)
    >>> layer(keras.ops.ones((2, 8, 8, 3))).shape
    TensorShape([2, 8, 8, 16])

    Args:
        layer: `Conv1D`, `Conv2D`, `Conv3D`, `DepthwiseConv1D`, `DepthwiseConv2D`, `Dense`, or a
            subclass that computes the same.
        bound: the largest norm that the layer may have, a float over 0, or `None` to divide by the
            norm whatever it is, so that the norm is 1.
        **kwargs: the other arguments of `keras.layers.Layer`. The dtype is that of the layer.

    Input shape:
        That of the layer. The spatial sizes must be known unless the kernel has size 1.

    Output shape:
        That of the layer.

    Raises:
        ValueError: if the layer is another one, quantized or with LoRA, or, when it is built or
            called, if the size of its inputs is not known or has changed.

    Reference:
        Miyato et al. 2018, https://arxiv.org/abs/1802.05957. Gouk et al. 2021,
        https://arxiv.org/abs/1804.04368, section 3: the norm of the operator, and a bound that
        leaves smaller norms as they are.
    """

    def __init__(
        self, layer: keras.layers.Layer, bound: float | None = 0.95, **kwargs: Any
    ) -> None:
        check_linear("layer", layer)
        super().__init__(layer, **kwargs | {"dtype": dtype_of([layer], kwargs.get("dtype"))})
        self.bound: float | None = check_number("bound", bound, over=0, or_none=True)
        self.divisor: Any = None
        self.supports_masking = layer.supports_masking

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.input_spec = self.layer.input_spec
        self.linear = linear_part(self.layer, input_shape)
        self.grid: Shape = tuple(input_shape)[1:]
        self.divisor = Divisor(
            self,
            lambda: self.bound,
            {"vector": self.linear.operator},
            [self.linear.vector_shape],
            lambda: [self.linear.kernel()],
        )
        # In a graph, the weights are initialized later.
        if not backends.is_traced(self.divisor.known):
            self.converge(training=True)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        check_linear("layer", self.layer)
        self._check_grid(inputs.shape)
        kernel = self.linear.kernel()
        divisor = self.divisor.of(
            [self.linear.of_operator(kernel)],
            lambda: [kernel],
            training and bool(self.layer.trainable_weights),
        )
        outputs = self.linear.apply(inputs, self.linear.divided(kernel, divisor))
        outputs = self.linear.finished(outputs)
        if self.layer.activity_regularizer is not None:
            loss = self.layer.activity_regularizer(outputs)
            # The mean over the batch, as in Keras.
            self.add_loss(ops.divide_no_nan(loss, ops.cast(ops.shape(outputs)[0], loss.dtype)))
        return outputs

    def _check_grid(self, shape):
        given = tuple(shape)[1:]
        if self.linear.needs_grid and given != self.grid:
            raise ArgumentError(
                "inputs",
                "have the shape that the layer was built for, since its norm is for one grid "
                f"only: {self.grid}",
                received=f"inputs of shape {given}",
            )

    def converge(self, training: bool = False) -> None:
        """Computes and stores the norm if the weights changed; see `Bounded.converge`."""
        divisor = built_part(self, self.divisor)
        kernel = self.linear.kernel()
        divisor.converge([self.linear.of_operator(kernel)], lambda: [kernel], training)

    def lipschitz_bound(self) -> dict[str, float]:
        """Returns bounds and estimates of the norm of the layer's linear part at inference.

        See `Bounded.lipschitz_bound`. If `bound` is `None`, `lipschitz` is 1.
        """
        self.converge()
        kernel = self.linear.kernel()
        exact = [self.linear.of_operator(kernel, "float64")]
        return self.divisor.report([self.linear.of_operator(kernel)], exact)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        if self.built:
            self._check_grid(input_shape)
        return self.layer.compute_output_shape(input_shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"bound": self.bound}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> SpectralNormalization:
        # A copy, since Keras removes the layer from the config.
        return super().from_config(dict(config), custom_objects)

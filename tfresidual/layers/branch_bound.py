"""A chain of layers that is divided by a bound of its Lipschitz constant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.layers import slopes as slopes_of_layers
from tfresidual.layers.batch_normalization import BatchNormalization, slope_of, variance_of
from tfresidual.layers.divisor import Divisor
from tfresidual.layers.linear import check_linear, kind_of, linear_part
from tfresidual.machine import backends

if TYPE_CHECKING:
    from collections.abc import Callable

    from tfresidual.definitions.types import Shape, Tensor
    from tfresidual.layers.linear import Linear


class BranchBound:
    """The divisor of a chain of layers, and how the chain is run.

    The Lipschitz constant of the chain is at most the product of the norms of its linear layers and
    the constants of the others. A batch normalization multiplies each channel by its slope. It
    commutes with activations and pooling, whose derivatives act on each channel by itself, so it is
    folded into the linear layer before it, or, if there is none, into the next one. If channels are
    mixed in between, as by `Flatten`, its largest slope is a factor of its own.

    Args:
        owner: the layer that gets the weights from which norms are computed.
        bound: function that returns the bound, a float over 0.
        layers: list of built layers, or functions whose slopes are known.
        shapes: shapes of the inputs of the layers, with the batch.
        names: names of the linear layers, for their weights.
    """

    def __init__(
        self,
        owner: keras.layers.Layer,
        bound: Callable[[], float | None],
        layers: list[keras.layers.Layer | Callable[[Tensor], Tensor]],
        shapes: list[Shape],
        names: list[str],
    ) -> None:
        self._layers, self._shape = layers, tuple(shapes[0])[1:]
        self.linear: dict[int, Linear] = {}
        self.constant = 1.0
        # For each normalization: the place of the linear layer it is folded into, and the side.
        self._folded: dict[int, tuple[int, str] | None] = {}
        self._plan(layers, shapes)
        linear = list(self.linear.values())
        operators = {
            f"vector_of_{name}": part.operator for name, part in zip(names, linear, strict=True)
        }
        self.divisor = Divisor(
            owner, bound, operators, [part.vector_shape for part in linear], self._parts
        )
        # In a graph, the weights are initialized later.
        if not backends.is_traced(self.divisor.known):
            self.converge(training=True)

    def _plan(self, layers, shapes):
        before, waiting = None, []
        for place, (layer, shape) in enumerate(zip(layers, shapes, strict=True)):
            if kind_of(layer) is not None:
                part = self.linear[place] = linear_part(layer, shape)
                for other in waiting:
                    if _is_along(layers[other], part.channel_axis, shapes[other]):
                        self._folded[other] = place, "input"
                waiting, before = [], place
                self.constant *= _slope(layer.activation, layer)
            elif is_normalization(layer):
                self._folded[place] = None
                if before is None:
                    waiting.append(place)
                elif _is_along(layer, self.linear[before].channel_axis, shape):
                    self._folded[place] = before, "output"
            elif isinstance(layer, keras.layers.Layer):
                found = slopes_of_layers.known(layer, shape)
                if found is None:
                    raise ArgumentError(
                        "branch",
                        "hold layers of which a Lipschitz constant is known",
                        received=f"{type(layer).__name__} {layer.name!r} with inputs of shape "
                        f"{tuple(shape)}",
                    )
                self.constant *= found.constant
                if not found.keeps_channels:
                    before, waiting = None, []
            else:
                self.constant *= _slope(layer, layer)

    def run(self, inputs: Tensor, training: bool | None, is_frozen: bool = False) -> Tensor:
        """Returns the outputs of the chain, divided by max(bound of its constant / bound, 1).

        With `is_frozen`, the norms are those of inference even in training.
        """
        self.check_shape(inputs.shape)
        outputs, slopes = inputs, {}
        for place, layer in enumerate(self._layers):
            if place in self._folded:
                outputs, slopes[place] = _with_slope(layer, outputs, training)
            else:
                if place in self.linear:
                    check_linear("branch", layer)
                outputs = layer(outputs)
        kernels, constant = self._kernels(slopes)
        divisor = self.divisor.of(kernels, self._parts, training and not is_frozen, constant)
        return outputs / ops.cast(divisor, outputs.dtype)

    def check_shape(self, shape: Shape) -> None:
        """Raises a `ValueError` if inputs have another shape than that of the bound."""
        given = tuple(shape)[1:]
        if given != self._shape:
            raise ArgumentError(
                "inputs",
                "have the shape that the layer was built for, since its bound holds for one grid "
                f"only: {self._shape}",
                received=f"inputs of shape {given}",
            )

    def is_frozen(self) -> bool:
        """Returns whether training changes nothing on which the norms depend."""
        layers: list[Any] = self._layers
        return not any(
            layer.trainable if place in self._folded else layer.trainable_variables
            for place, layer in enumerate(layers)
            if place in self._folded or place in self.linear
        )

    def _kernels(self, slopes, dtype="float32"):
        """Returns the kernels of all linear layers, with batch normalization folded in, and the
        product of all other constants."""
        kernels, constant = {}, self.constant
        for place in range(len(self._layers)):
            if place in self.linear:
                part = self.linear[place]
                kernels[place] = part.of_operator(part.kernel(), dtype)
                for other, folded in self._folded.items():
                    if folded == (place, "input"):
                        slope = ops.cast(slopes[other], dtype)
                        kernels[place] = part.operator.scaled(kernels[place], slope, None)
            elif place in self._folded:
                slope = ops.cast(slopes[place], dtype)
                if self._folded[place] is None:
                    constant *= ops.max(ops.abs(slope))
                elif self._folded[place][1] == "output":
                    before = self._folded[place][0]
                    operator = self.linear[before].operator
                    kernels[before] = operator.scaled(kernels[before], None, slope)
        return list(kernels.values()), constant

    def _parts(self):
        """Returns everything that the bound depends on at inference."""
        parts = []
        for place, layer in enumerate(self._layers):
            if place in self.linear:
                parts.append(self.linear[place].kernel())
            elif place in self._folded:
                parts += [layer.moving_variance, *([layer.gamma] if layer.scale else [])]
        return parts

    def _at_inference(self, dtype="float32"):
        slopes = {place: slope_of(self._layers[place]) for place in self._folded}
        return self._kernels(slopes, dtype)

    def converge(self, training: bool = False) -> None:
        """Computes and stores the norms if the weights changed; see `Bounded.converge`."""
        kernels, _ = self._at_inference()
        self.divisor.converge(kernels, self._parts, training)

    def report(self) -> dict[str, float]:
        """Returns bounds and estimates; see `Bounded.lipschitz_bound`."""
        self.converge()
        kernels, constant = self._at_inference()
        exact, _ = self._at_inference("float64")
        return self.divisor.report(kernels, exact, float(constant))


def is_normalization(layer: object) -> bool:
    """Returns whether a layer is a batch normalization, of this package or of Keras."""
    return type(layer) in (BatchNormalization, keras.layers.BatchNormalization)


def _slope(activation, layer):
    """Returns the largest slope of an activation, or raises a `ValueError`."""
    slope = slopes_of_layers.slope_of(activation)
    if slope is None:
        raise ArgumentError(
            "branch",
            "hold activations of which the largest slope is known",
            received=f"activation={activation!r} of {getattr(layer, 'name', layer)}",
        )
    return slope


def _is_along(normalization, axis, shape):
    """Returns whether a normalization has one factor for each channel of a linear layer."""
    return normalization.axis % len(shape) == axis % len(shape)


def _with_slope(layer, inputs, training):
    """Returns the outputs of a batch normalization and the factor of each channel."""
    if isinstance(layer, BatchNormalization):
        return layer.call_with_slope(inputs, training=training)
    outputs = layer(inputs, training=training)
    of_batch = training and layer.trainable
    return outputs, slope_of(layer, variance_of(layer, inputs) if of_batch else None)

"""The number by which a branch is divided so that its Lipschitz constant stays under a bound."""

from __future__ import annotations

import contextlib
import contextvars
import math
from typing import TYPE_CHECKING, Any

from keras import ops

from tfresidual.layers import spectral
from tfresidual.machine import backends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import keras

    from tfresidual.definitions.types import Tensor
    from tfresidual.layers.operators import Operator

# Iterations of power iteration per training step, and the noise that is added to its vector.
ITERATIONS = 2
NOISE = 0.01
_is_fixed = contextvars.ContextVar("whether stored norms are used as they are", default=False)


class Divisor:
    """Product of the norms of linear operators, over a bound, but at least 1.

    It holds the weights from which the norms are computed. Training and inference have separate
    vectors, so that evaluating a network does not change how it trains. Another weight records the
    values on which the norms depended when the vectors of inference were computed. When norms are
    computed is described in `SpectralNormalization`.

    The methods take the kernels of all operators, float32 and of the shapes that the operators
    take, and `parts`: a function that returns all tensors on which the kernels depend at inference.

    Args:
        layer: the `keras.layers.Layer` that gets the weights.
        bound: function that returns the bound, a float over 0, or `None` to divide by the norms
            themselves.
        operators: the operators by name.
        shapes: shapes of the input vector of every operator.
        parts: the function described above.
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        bound: Callable[[], float | None],
        operators: dict[str, Operator],
        shapes: Sequence[tuple[int, ...]],
        parts: Callable[[], list[Tensor]],
    ) -> None:
        self.bound = bound
        self.operators = list(operators.values())
        self.vectors: list[keras.Variable] = []
        self.training_vectors: list[keras.Variable] = []
        for name, shape in zip(operators, shapes, strict=True):
            self.vectors.append(_vector(layer, name, shape))
            self.training_vectors.append(_vector(layer, f"training_{name}", shape))
        self.known: keras.Variable = layer.add_weight(
            # Zeros stand for kernels of zeros, for which any vectors are correct.
            shape=(sum(math.prod(part.shape) for part in parts()),),
            initializer="zeros",
            trainable=False,
            autocast=False,
            dtype=layer.variable_dtype,
            name="known_weights",
        )
        # TensorFlow saves what is found from the attributes of the layer.
        layer.variables_of_norms = [*self.vectors, *self.training_vectors, self.known]

    def of(
        self,
        kernels: list[Tensor],
        parts: Callable[[], list[Tensor]],
        training: bool | None = False,
        constant: float | Tensor = 1.0,
    ) -> Tensor:
        """Returns the divisor, float32; gradients flow through it to the kernels.

        Args:
            kernels: the kernels.
            parts: see above.
            training: whether to update the vectors of training and use them.
            constant: a further factor of the product.
        """
        vectors = (
            self._training_vectors(kernels) if training else self._inference_vectors(kernels, parts)
        )
        norms = [
            spectral.operator_norm(kernel, vector, operator)
            for vector, kernel, operator in zip(vectors, kernels, self.operators, strict=True)
        ]
        norm = ops.prod(norms)
        if not (isinstance(constant, float) and constant == 1):
            norm = norm * constant
        bound = self.bound()
        if bound is None:
            # Zeros stay zeros.
            return ops.where(norm < spectral.TINY, 1.0, norm)
        return ops.maximum(norm / bound, 1.0)

    def _training_vectors(self, kernels):
        """Returns the vectors for the norms in a training step, updated by a few iterations."""
        values = []
        for vector, kernel, operator in zip(
            self.training_vectors, kernels, self.operators, strict=True
        ):
            value = ops.convert_to_tensor(vector)
            # The vector may be a singular vector of a smaller singular value by now. Iterations
            # alone would not leave it.
            value += NOISE * spectral.noise(vector.shape)
            values.append(spectral.power_iteration(kernel, value, operator, ITERATIONS))
            vector.assign(values[-1])
        return values

    def _inference_vectors(self, kernels, parts):
        """Returns the vectors for the norms at inference: the stored ones if still valid."""
        flat = [ops.reshape(ops.cast(part, self.known.dtype), (-1,)) for part in parts()]
        current = ops.concatenate(flat)

        def kept():
            return [ops.convert_to_tensor(vector) for vector in self.vectors]

        def sought():
            return [
                spectral.singular_vector(
                    ops.stop_gradient(kernel), tuple(vector.shape[1:-1]), operator
                )
                for vector, kernel, operator in zip(
                    self.vectors, kernels, self.operators, strict=True
                )
            ]

        def store(values):
            for variable, value in zip(
                [*self.vectors, self.known], [*values, current], strict=True
            ):
                variable.assign(value)
            return values

        if _is_fixed.get():
            return kept()
        are_valid = ops.all(current == ops.convert_to_tensor(self.known))
        return backends.stored_or_new(are_valid, kept, sought, store)

    def converge(
        self,
        kernels: list[Tensor],
        parts: Callable[[], list[Tensor]],
        training: bool = False,
    ) -> None:
        """Computes and stores the norms if the weights changed; see `SpectralNormalization`."""
        self._inference_vectors(kernels, parts)
        if training:
            for own, vector in zip(self.training_vectors, self.vectors, strict=True):
                # A copy, since JAX reuses the memory of each variable for its next value.
                own.assign(ops.copy(vector))

    def report(
        self,
        kernels: list[Tensor],
        exact: list[Tensor] | None = None,
        constant: float = 1.0,
    ) -> dict[str, float]:
        """Returns bounds and estimates of the product of the norms; see `lipschitz_bound`.

        Args:
            kernels: the kernels.
            exact: the kernels in float64, of which to certify the norms, or `None` for the same.
            constant: a further factor of the product.
        """
        estimate, largest = constant, 0.0
        for vector, kernel, operator in zip(self.vectors, kernels, self.operators, strict=True):
            value = ops.convert_to_tensor(vector)
            norm = spectral.operator_norm(kernel, value, operator)
            residual = spectral.residual(kernel, value, operator)
            estimate *= float(ops.convert_to_numpy(norm))
            largest = max(largest, float(ops.convert_to_numpy(residual)))
        certified = constant
        for vector, kernel, operator in zip(
            self.vectors, exact or kernels, self.operators, strict=True
        ):
            certified *= spectral.certified_norm(kernel, vector.shape[1:-1], operator)
        given = self.bound()
        bound = 1.0 if given is None else given
        is_divided = estimate > bound or (given is None and estimate >= spectral.TINY)
        return {
            "lipschitz": bound,
            "estimate": estimate,
            "residual": largest,
            "certified": float(certified),
            "divisor": estimate / bound if is_divided else 1.0,
        }


def built_part(layer: keras.layers.Layer, part: Any) -> Any:
    """Returns what a layer made when it was built, or raises a `ValueError` if that is `None`."""
    if part is None:
        raise ValueError(
            "The layer must be built before its norms are computed: call it, or its method "
            f"`build`. Received: {type(layer).__name__} {layer.name!r}"
        )
    return part


def _vector(layer, name, shape):
    """Adds the weight that holds a singular vector of the given shape."""
    return layer.add_weight(
        shape=shape,
        initializer=lambda shape, dtype=None: spectral.noise(shape),
        trainable=False,
        autocast=False,
        dtype="float32",
        name=name,
    )


@contextlib.contextmanager
def fixed_norms() -> Iterator[None]:
    """Makes layers use the norms as they are stored, for export to formats without iterations.

    The weights of an exported file never change, so the norms need no update.
    """
    token = _is_fixed.set(True)
    try:
        yield
    finally:
        _is_fixed.reset(token)

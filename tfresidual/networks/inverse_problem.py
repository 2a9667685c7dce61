"""The inverse problem x = (a1 z1, a2 z2): an iterative algorithm and small networks for it.

Given x, find z. The algorithm starts from z = x and repeatedly corrects z by the prediction error
a z - x. A residual block of four ReLUs can do the same, but networks of this architecture trained
by gradient descent do not necessarily learn it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from tfresidual.definitions.arguments import ArgumentError, check_choice
from tfresidual.machine.first_step import TracedOnce

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.definitions.types import Array, ArrayLike, DType, Initializer, Shape, Tensor

SLOPES = (1.5, 0.75)
RATES = (0.3, 0.8)
KINDS = ("feedforward", "residual", "recurrent")


def error_correction(
    x: ArrayLike, slopes: ArrayLike = SLOPES, steps: int = 8, rates: ArrayLike = RATES
) -> Array:
    """Solves the inverse problem by correcting the prediction error step by step.

    Starting from z = x, each step is z <- z - s e (a z - x) with slopes a, their signs s and rates
    e. Each step multiplies the distance of each coordinate to the solution x / a by 1 - |a| e. The
    distance shrinks if e < 2 / |a|, without overshooting the solution if e <= 1 / |a|. (The paper
    states that any e <= 1 works; that holds for |a| < 2, as in the paper.)

    Example:

    >>> error_correction(np.array([[1.5, 0.75]]), steps=2)[:, 0]
    array([[1.5   , 0.75  ],
           [1.275 , 0.9   ],
           [1.15125, 0.96  ]])

    Args:
        x: array `(inputs, 2)`.
        slopes: the two numbers a, not 0.
        steps: int, 0 or more.
        rates: the two numbers e, over 0.

    Returns:
        All estimates of z, from the first, x itself, to the last, as an array
        `(steps + 1, inputs, 2)` with the dtype of `x`.

    Raises:
        ValueError: if an argument is invalid.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets",
        section 3.1.
    """
    x = np.asarray(x)
    if x.ndim != 2 or x.shape[1] != 2 or not np.issubdtype(x.dtype, np.floating):
        raise ArgumentError(
            "x",
            "be an array (inputs, 2) of floats",
            received=f"an array of shape {x.shape} and dtype {x.dtype}",
        )
    slopes, rates = checked_slopes(slopes), _checked_rates(rates)
    slopes, signed_rates = slopes.astype(x.dtype), (np.sign(slopes) * rates).astype(x.dtype)
    estimates = [x]
    for _ in range(steps):
        z = estimates[-1]
        estimates.append(z - signed_rates * (slopes * z - x))
    return np.stack(estimates)


@keras.saving.register_keras_serializable(package="tfresidual")
class DenseBlock(keras.layers.Layer):
    """Two dense layers with a ReLU between them, with or without a shortcut around them.

    Example:

    >>> DenseBlock(hidden=16)(keras.ops.ones((5, 8))).shape
    TensorShape([5, 8])

    Args:
        hidden: int, number of ReLUs.
        shortcut: bool, whether the input is added to the output of the second layer.
        branch_initializer: initializer of the second layer's kernel. By default `"zeros"` with a
            shortcut, so that the block starts as the identity, and `"he_normal"` without.

    Input shape:
        `(images, width)`; the output has the same shape.
    """

    def __init__(
        self,
        hidden: int,
        *,
        shortcut: bool = True,
        branch_initializer: Initializer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden: int = hidden
        self.shortcut: bool = bool(shortcut)
        self.branch_initializer: keras.initializers.Initializer = keras.initializers.get(
            branch_initializer or ("zeros" if self.shortcut else "he_normal")
        )
        self.first = keras.layers.Dense(
            self.hidden,
            activation="relu",
            kernel_initializer="he_normal",
            dtype=self.dtype_policy,
            name="first",
        )

    def build(self, input_shape: Shape) -> None:
        self.first.build(input_shape)
        self.second = keras.layers.Dense(
            input_shape[-1],
            kernel_initializer=self.branch_initializer,
            dtype=self.dtype_policy,
            name="second",
        )
        self.second.build((*input_shape[:-1], self.hidden))

    def call(self, inputs: Tensor) -> Tensor:
        branch = self.second(self.first(inputs))
        return ops.add(inputs, branch) if self.shortcut else branch

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "hidden": self.hidden,
            "shortcut": self.shortcut,
            "branch_initializer": keras.initializers.serialize(self.branch_initializer),
        }


@keras.saving.register_keras_serializable(package="tfresidual")
class InverseProblemNetwork(TracedOnce, keras.Model):
    """Network that estimates z from x: encoder, blocks of two dense layers, and decoder.

    Encoder and decoder are linear, so the decoder can read an estimate of z from every state.

    Example:

    >>> network = InverseProblemNetwork("recurrent", blocks=8)
    >>> network(keras.ops.ones((5, 2))).shape
    TensorShape([5, 2])

    Args:
        kind: `"feedforward"` (blocks without shortcuts), `"residual"`, or `"recurrent"` (residual,
            with a single block that is applied repeatedly).
        blocks: int, number of blocks applied.
        width: int, size of the state.
        hidden: int, number of ReLUs in a block.
        branch_initializer: initializer of the blocks' second kernels, see `DenseBlock`.
        dtype: dtype policy of all layers, by default Keras' own setting.
        name: name of the model, by default its kind.

    Raises:
        ValueError: if an argument is invalid.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section 3.2.
        The paper does not state the sizes of its networks.
    """

    def __init__(
        self,
        kind: Literal["feedforward", "residual", "recurrent"],
        *,
        blocks: int = 8,
        width: int = 8,
        hidden: int = 16,
        branch_initializer: Initializer | None = None,
        dtype: DType | None = None,
        name: str | None = None,
    ) -> None:
        check_choice("kind", kind, KINDS)
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        if branch_initializer is not None:
            branch_initializer = keras.initializers.get(branch_initializer)

        def block(name):
            own = branch_initializer
            if isinstance(own, keras.initializers.Initializer):
                # A single object without a seed would give all blocks the same weights.
                own = own.clone()
            return DenseBlock(
                hidden,
                shortcut=kind != "feedforward",
                branch_initializer=own,
                dtype=policy,
                name=name,
            )

        inputs = keras.Input((2,), name="x", dtype=policy.compute_dtype)
        state = keras.layers.Dense(width, dtype=policy, name="encoder")(inputs)
        shared = block("block") if kind == "recurrent" else None
        for index in range(blocks):
            state = (shared or block(f"block{index}"))(state)
        outputs = keras.layers.Dense(2, dtype=policy, name="decoder")(state)
        super().__init__(inputs, outputs, name=name or kind)
        self.dtype_policy = policy

        self.kind: Literal["feedforward", "residual", "recurrent"] = kind
        self.blocks: int = blocks
        self.width: int = width
        self.hidden: int = hidden
        self.branch_initializer: keras.initializers.Initializer | None = branch_initializer

    def sections(
        self,
    ) -> tuple[
        list[keras.layers.Layer], list[tuple[None, list[DenseBlock]]], list[keras.layers.Layer]
    ]:
        """Returns the layers of encoder, blocks and decoder, in the order of the data flow.

        Returns:
            A tuple `(stem, stages, head)` like that of `ResidualNetwork.sections`, with one stage.
            The block of a recurrent network appears once for each time it is applied.
        """
        is_shared = self.kind == "recurrent"
        names = ["block" if is_shared else f"block{index}" for index in range(self.blocks)]
        blocks = [self.get_layer(name) for name in names]
        return [self.get_layer("encoder")], [(None, blocks)], [self.get_layer("decoder")]

    def get_config(self) -> dict[str, Any]:
        initializer = self.branch_initializer
        return {
            "name": self.name,
            "trainable": self.trainable,
            "kind": self.kind,
            "blocks": self.blocks,
            "width": self.width,
            "hidden": self.hidden,
            "branch_initializer": initializer and keras.initializers.serialize(initializer),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> InverseProblemNetwork:
        config = dict(config)
        trainable = config.pop("trainable", True)
        network = cls(**config)
        network.trainable = trainable
        return network


def error_correcting_network(
    slopes: ArrayLike = SLOPES, steps: int = 8, rates: ArrayLike = RATES, dtype: DType | None = None
) -> InverseProblemNetwork:
    """Returns the algorithm of `error_correction` as a recurrent network with weights set by hand.

    The state consists of x and the estimate of z, four numbers; the encoder sets both to x. The
    four ReLUs of the block are the positive and the negative parts p = ReLU(a z - x) and n =
    ReLU(x - a z) of the prediction error. Since p - n = a z - x, adding s e (n - p) to the estimate
    performs one step.

    Example:

    >>> error_correcting_network(steps=2)(np.array([[1.5, 0.75]], "float32")).numpy().round(3)
    array([[1.151, 0.96 ]], dtype=float32)

    Args:
        slopes: the two numbers a, not 0.
        steps: int, the number of times that the block is applied, 1 or more.
        rates: the two numbers e, over 0.
        dtype: dtype policy of all layers, by default Keras' own setting.

    Returns:
        An `InverseProblemNetwork`.

    Raises:
        ValueError: if an argument is invalid.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets",
        section 3.1 and fig. 1a.
    """
    slopes, rates = checked_slopes(slopes), _checked_rates(rates)
    network = InverseProblemNetwork(
        "recurrent", blocks=steps, width=4, hidden=4, dtype=dtype, name="error_correction"
    )
    identity, nothing = np.eye(2), np.zeros((2, 2))
    # Rows are x and z of the state, columns the ReLUs p and n; the reverse in `correction`.
    errors = np.block([[-identity, identity], [np.diag(slopes), -np.diag(slopes)]])
    step = np.diag(np.sign(slopes) * rates)
    correction = np.block([[nothing, -step], [nothing, step]])
    block = network.get_layer("block")
    for layer, kernel in (
        (network.get_layer("encoder"), np.hstack([identity, identity])),
        (block.first, errors),
        (block.second, correction),
        (network.get_layer("decoder"), np.vstack([nothing, identity])),
    ):
        layer.set_weights([kernel, np.zeros(kernel.shape[1])])
    return network


def checked_slopes(slopes: ArrayLike) -> Array:
    """Returns the slopes as a float64 array; raises a `ValueError` if the problem is unsolvable."""
    values = _numbers(slopes)
    if values is None or not values.all():
        raise ArgumentError("slopes", "be two finite numbers other than 0", slopes)
    return values


def _checked_rates(rates: ArrayLike) -> Array:
    values = _numbers(rates)
    if values is None or not (values > 0).all():
        raise ArgumentError("rates", "be two finite numbers over 0", rates)
    return values


def _numbers(values):
    """Returns two finite numbers as a float64 array, or `None` for any other value."""
    try:
        values = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return values if values.shape == (2,) and np.isfinite(values).all() else None

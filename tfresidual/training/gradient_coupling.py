"""Soft gradient coupling: blocks of a stage are updated with one another's gradients."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from tfresidual.definitions.arguments import ArgumentError, check_choice, check_int, check_number
from tfresidual.definitions.settings import KERNELS
from tfresidual.networks.weight_groups import blocks_of, groups_of
from tfresidual.training.coupled_groups import Groups, config_of, groups_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tfresidual.definitions.types import Array, CouplingKernel, Tensor
    from tfresidual.routing.chain import Chain


def coupling_kernel(
    blocks: Iterable[int], coupling: float, *, kernel: CouplingKernel = "uniform"
) -> Array:
    """Returns the weights with which the gradients of coupled blocks are mixed.

    For T blocks with block indices s and t, and the coupling c:

    - `"uniform"`: `(1 - c) + c / T` on the diagonal, `c / T` elsewhere.
    - `"triangular_printed"`: `max(0, 1 - 2 (1 - c) |s - t| / T)` for `c >= 0.5`, and
      `max(0, 1 - |s - t| / (2 c T))` for smaller `c`, as printed in the paper. Its rows do not sum
      to 1: at coupling 1 all entries are 1, and every block is updated with T times the mean.
    - `"triangular"`: the same, with every row divided by its sum. It is not symmetric.

    All kernels are the identity at coupling 0. At coupling 1 all rows of a kernel are equal.

    Args:
        blocks: different ints, the block indices.
        coupling: float from 0 to 1.
        kernel: see above.

    Returns:
        A float64 array `(T, T)`. Row t belongs to block t: its update is
        `sum(array[t, s] * gradient_s over s)`.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets",
        section 4.1 and appendix D.2.
    """
    coupling = check_number("coupling", coupling, at_least=0, at_most=1)
    check_choice("kernel", kernel, KERNELS)
    places = np.asarray(blocks)
    count = len(places)
    if kernel == "uniform":
        return (1 - coupling) * np.eye(count) + coupling / count
    distance = np.abs(places[:, None] - places[None, :]).astype(np.float64)
    if coupling >= 0.5:
        weights = np.maximum(0, 1 - 2 * (1 - coupling) * distance / count)
    elif coupling > 0:
        # Equal to the printed formula, but cannot overflow, which divisions by less may do.
        width = max(2 * coupling * count, np.finfo(np.float64).tiny)
        weights = np.maximum(0, width - distance) / width
    else:
        weights = np.eye(count)
    if kernel == "triangular":
        weights /= weights.sum(axis=1, keepdims=True)
    return weights


@dataclasses.dataclass(frozen=True, eq=False)
class _Mixture:
    """How the gradients of one group of weights are mixed."""

    # Of the weights, among the variables of the optimizer.
    indices: tuple[int, ...]
    # The different rows of the kernel, one column per weight, and which of them each weight has.
    rows: np.ndarray
    row_of: tuple[int, ...]


@keras.saving.register_keras_serializable(package="tfresidual")
class GradientCoupling(keras.optimizers.Optimizer):
    """Wrapper of an optimizer that mixes the gradients of the blocks of a stage.

    Before the inner optimizer clips, accumulates or applies the gradient of a weight, it is
    replaced by a weighted sum of the gradients of the weights with the same role in the blocks of
    its stage. This includes biases and the scale and offset of batch normalization. Blocks that
    change the shape of the state are left out, see `tfresidual.networks.weight_groups`.

    With coupling 0, only the inner optimizer acts. With coupling 1, all blocks of a stage get the
    same update: weights that start equal (`recurrent_initialization=True` of the network) stay
    equal to the last bit, while every batch normalization keeps its own statistics.

    Set weight decay, clipping, moving averages and similar options on the inner optimizer. With
    mixed float16, a `keras.optimizers.LossScaleOptimizer` must be the outer wrapper, and Keras'
    `SwapEMAWeights`, which looks through only one wrapper, does not work.

    Example:

    >>> network = tfresidual.networks.resnet(20)
    >>> optimizer = GradientCoupling(keras.optimizers.SGD(0.1, momentum=0.9), coupling=0.9)
    >>> network.compile(optimizer, "sparse_categorical_crossentropy")

    A model of other layers, whose blocks start equal:

    >>> state = inputs = keras.Input((4,))
    >>> blocks = [keras.layers.Dense(4, "relu") for _ in range(3)]
    >>> for block in blocks:
    ...     state = keras.layers.Add()([state, block(state)])
    ...     block.set_weights(blocks[0].get_weights())
    >>> model = keras.Model(inputs, keras.layers.Dense(1)(state))
    >>> model.compile(GradientCoupling("sgd", coupling=0.9, groups=[blocks]), "mse")
    >>> model.compile(GradientCoupling("sgd", coupling=0.9, groups=tfresidual.chain(model)), "mse")

    Args:
        inner: the optimizer that applies the gradients: a `keras.optimizers.Optimizer`, or its
            name or config.
        coupling: float from 0 (ordinary network) to 1 (recurrent network).
        kernel: how the gradients are weighted, see `coupling_kernel`.
        first_block: int, blocks with a lower block index are not coupled: in a stage or, if
            `groups` are lists, in their group.
        groups: the blocks that are coupled, as lists of layers or as a chain, see above; or
            `None`. A config holds the paths of the weights, and their places among the variables of
            the optimizer.
        name: name of the optimizer.

    Raises:
        ValueError: if an argument is invalid, the blocks of a group do not match, a weight is in
            two groups, or no two weights can be coupled; the latter also when built.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets",
        section 4.1 and appendix D.2, D.3.
    """

    def __init__(
        self,
        inner: str | dict[str, Any] | keras.optimizers.Optimizer,
        coupling: float,
        *,
        kernel: CouplingKernel = "uniform",
        first_block: int = 0,
        groups: Sequence[Sequence[Any]] | Chain | dict[str, Any] | None = None,
        name: str = "gradient_coupling",
    ) -> None:
        super().__init__(learning_rate=0.0, name=name)
        self.inner: keras.optimizers.Optimizer = _checked_inner(inner)
        self._mixtures: tuple[_Mixture, ...] = ()
        check_choice("kernel", kernel, KERNELS)
        self.kernel: CouplingKernel = kernel
        self.first_block: int = check_int("first_block", first_block, at_least=0)
        self._groups: Groups | None = None
        if groups is not None:
            self._groups = groups_from(groups, self.first_block)
        self.coupling = coupling

    @property
    def coupling(self) -> float:
        """The coupling. A new one counts from the next time that a training step is compiled."""
        return self._coupling

    @coupling.setter
    def coupling(self, coupling: float) -> None:
        self._coupling = check_number("coupling", coupling, at_least=0, at_most=1)
        if self.built:
            self._mix(self._coupled(self._trainable_variables))

    def check_variables(self, variables: Iterable[keras.Variable]) -> None:
        """Raises a `ValueError` if no two of the variables can be coupled."""
        self._coupled(list(variables))

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        variables = list(variables)
        # It may fail, and nothing is built then.
        groups = self._coupled(variables)
        self.inner.build(variables)
        super().build(variables)
        self._mix(groups)

    def _mix(self, groups):
        mixtures = (self._mixture(group) for group in groups)
        self._mixtures = tuple(mixture for mixture in mixtures if mixture is not None)

    def _coupled(self, variables):
        """Returns the `WeightGroup`s of two or more of the variables."""
        # Variables with `overwrite_with_gradient` (float8 scales) have their next value as
        # gradient.
        coupled = [v for v in variables if not v.overwrite_with_gradient]
        if self._groups is None:
            groups = groups_of(blocks_of(coupled), self.first_block)
        else:
            groups = [group.among(coupled) for group in self._groups.found(variables)]
        groups = [group for group in groups if len(group.variables) > 1]
        if groups:
            return groups
        raise ValueError(
            "GradientCoupling found no two weights to couple. Without `groups`, it couples blocks "
            "of a `tfresidual.networks.ResidualNetwork` that keep the shape of the state, from "
            "block `first_block` on; give those of another model as "
            "`groups=tfresidual.chain(model)` or as lists of layers of it. Received: "
            f"first_block={self.first_block}, the variables {[v.path for v in variables[:4]]}..."
        )

    def _mixture(self, group):
        """Returns how a group is mixed, or `None` if its weights keep their own gradients."""
        weights = coupling_kernel(group.blocks, self.coupling, kernel=self.kernel)
        if np.array_equal(weights, np.eye(len(weights))):
            return None
        # Blocks with equal rows get the same tensor, so that rounding cannot make them differ.
        rows, row_of = np.unique(weights, axis=0, return_inverse=True)
        indices = tuple(self._get_variable_index(variable) for variable in group.variables)
        return _Mixture(indices, rows, tuple(row_of.ravel().tolist()))

    def apply(
        self, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> None:
        grads = list(grads)
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        trainable_variables = list(trainable_variables)
        if not self.built:
            self.build(trainable_variables)
        self._check_variables_are_known(trainable_variables)
        self.inner.apply(self._mixed(grads, trainable_variables), trainable_variables)

    def _mixed(self, grads, variables):
        """Returns the gradients after mixing; a missing one of coupled weights counts as zero."""
        place_of = {self._get_variable_index(v): place for place, v in enumerate(variables)}
        mixed = list(grads)
        for mixture in self._mixtures:
            places = [place_of.get(index) for index in mixture.indices]
            columns = [
                column
                for column, place in enumerate(places)
                if place is not None and grads[place] is not None
            ]
            if not columns:
                continue
            found = [ops.convert_to_tensor(grads[places[column]]) for column in columns]
            dtypes = {keras.backend.standardize_dtype(gradient.dtype) for gradient in found}
            dtype = "float64" if "float64" in dtypes else "float32"
            stacked = ops.stack([ops.cast(gradient, dtype) for gradient in found])
            rows = ops.matmul(
                ops.convert_to_tensor(mixture.rows[:, columns], dtype),
                ops.reshape(stacked, (len(found), -1)),
            )
            shape = (len(mixture.rows), *found[0].shape)
            rows = ops.unstack(ops.reshape(rows, shape), len(mixture.rows))
            for place, row in zip(places, mixture.row_of, strict=True):
                if place is not None:
                    mixed[place] = ops.cast(rows[row], variables[place].dtype)
        return mixed

    @property
    def inner_optimizer(self) -> keras.optimizers.Optimizer:
        """The inner optimizer, under the name that callbacks of Keras expect."""
        return self.inner

    @property
    def variables(self) -> list[keras.Variable]:
        return super().variables + self.inner.variables

    @property
    def iterations(self) -> keras.Variable:
        return self.inner.iterations

    @property
    def learning_rate(self) -> Any:
        return self.inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner.learning_rate = learning_rate

    @property
    def loss_scale_factor(self) -> float | None:
        return self.inner.loss_scale_factor

    @loss_scale_factor.setter
    def loss_scale_factor(self, factor: float | None) -> None:
        # Keras sets it to None in its own `__init__`, before the inner optimizer exists.
        if hasattr(self, "inner"):
            self.inner.loss_scale_factor = factor

    def scale_loss(self, loss: Tensor) -> Tensor:
        return self.inner.scale_loss(loss)

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[keras.Variable] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        self.inner.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        self.inner.finalize_variable_values(var_list)

    def set_weights(self, weights: Sequence[Any]) -> None:
        own = len(super().variables)
        super().set_weights(weights[:own])
        self.inner.set_weights(weights[own:])

    def get_config(self) -> dict[str, Any]:
        # Does not call the base class: of its arguments, this class takes only the name.
        return {
            "name": self.name,
            "inner": keras.saving.serialize_keras_object(self.inner),
            "coupling": self.coupling,
            "kernel": self.kernel,
            "first_block": self.first_block,
            "groups": self._config_of_groups(),
        }

    def _config_of_groups(self):
        if self._groups is None:
            return None
        variables = list(self._trainable_variables) if self.built else None
        if variables is None and self._groups.config is not None:
            return self._groups.config
        return config_of(self._groups.found(variables or ()), variables)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> GradientCoupling:
        config = dict(config)
        config["inner"] = keras.saving.deserialize_keras_object(
            config["inner"], custom_objects=custom_objects
        )
        return cls(**config)


def _checked_inner(inner):
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise ArgumentError(
            "inner",
            "not be a LossScaleOptimizer, which must wrap the coupling instead: "
            "LossScaleOptimizer(GradientCoupling(...)); `compile` adds it automatically",
            inner,
        )
    return keras.optimizers.get(inner)

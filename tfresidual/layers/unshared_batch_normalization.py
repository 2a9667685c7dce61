"""Batch normalization of a block that is applied several times in a forward pass."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from tfresidual.definitions.arguments import ArgumentError, check_int
from tfresidual.layers.applications import note_numbered, number_of_call, unknown_application
from tfresidual.layers.batch_normalization import LEARNED, BatchNormalization, check_parts
from tfresidual.machine.backends import known_int
from tfresidual.machine.tracing import gives_shapes_alone

if TYPE_CHECKING:
    from collections.abc import Collection

    from tfresidual.definitions.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="tfresidual")
class UnsharedBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization with weights of its own for every application of a shared block.

    A block that is applied several times in a forward pass sees other activations each time. With
    one batch normalization for all of them, states of a residual network explode while its
    averages are those of the start, and it trains worse. This layer has moving statistics, gamma
    and beta for each of the first `applications` calls in a forward pass, or shares some of them.
    Calls beyond these use the weights of the last one. It computes as
    `tfresidual.layers.BatchNormalization`.

    Which application a call is must be known, or the call is an error:

    - with `application=`, an int or an int tensor, counted from 0. This is the way in graphs of
      functional models, and in loops whose code is traced once, such as `keras.ops.while_loop`;
    - in the block of a `tfresidual.layers.Repeated`, the applications are counted;
    - in the code of a `with tfresidual.layers.forward_pass():`, the calls are counted from 0.

    Example:

    >>> inputs = keras.Input((8, 8, 4))
    >>> convolution = keras.layers.Conv2D(4, 3, padding="same")
    >>> normalization = UnsharedBatchNormalization(applications=3, gamma_initializer=0.1)
    >>> state = inputs
    >>> for index in range(3):
    ...     state = state + normalization(convolution(state), application=index)
    >>> keras.Model(inputs, state).count_params()  # 148 of the convolution, 3 times 16
    196

    Args:
        applications: int, how often the layer is applied in a forward pass.
        share: which parts all applications have in common, any of `"statistics"` (moving mean and
            variance), `"gamma"` and `"beta"`. None of them, as by default, together with gammas
            that start at 0.1, is the unshared batch normalization of the paper; all of them is one
            batch normalization that is called repeatedly.
        gamma_initializer: initializer of gamma, also as a number.
        **kwargs: the other arguments of `keras.layers.BatchNormalization`.

    Call arguments:
        inputs: tensor of any rank.
        training: whether the call is a training step.
        mask: bool tensor without the last axis of `inputs`: which positions count in the
            statistics.
        application: int, 0 or more, or an int tensor without axes. If the value of a tensor is
            known only when a graph is run, and is negative, the outputs are NaN. On JAX, statistics
            cannot be updated inside a traced loop.

    Raises:
        ValueError: if an argument is invalid, or it cannot be known which application a call is.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, section 4.5 and fig. 9.
    """

    def __init__(
        self,
        applications: int,
        share: Collection[str] = (),
        gamma_initializer: Any = "ones",
        **kwargs: Any,
    ) -> None:
        if isinstance(gamma_initializer, Real):
            gamma_initializer = keras.initializers.Constant(gamma_initializer)
        super().__init__(gamma_initializer=gamma_initializer, **kwargs)
        self.applications: int = applications
        self.share: tuple[str, ...] = check_parts("share", share)
        config = super().get_config()
        config.pop("activity_regularizer", None)
        self.normalizations: list[BatchNormalization] = [
            BatchNormalization.from_config(config | {"name": f"application{index}"})
            for index in range(self.applications)
        ]

    def build(self, input_shape: Shape) -> None:
        first = self.normalizations[0]
        for normalization in self.normalizations:
            if normalization is not first:
                normalization.share(first, self.share)
            if not normalization.built:
                normalization.build(input_shape)
        self.input_spec = first.input_spec

    def normalization(self, application: int) -> BatchNormalization:
        """Returns the batch normalization of an application, counted from 0."""
        return self.normalizations[min(application, self.applications - 1)]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # As of any other batch normalization, these may be set later.
        if name in ("momentum", "epsilon") and hasattr(self, "normalizations"):
            for normalization in self.normalizations:
                setattr(normalization, name, value)

    def __call__(
        self,
        inputs: Tensor,
        *args: Any,
        application: int | Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        if application is not None:
            application = _checked(application)
            note_numbered(self)
            return super().__call__(inputs, *args, application=application, **kwargs)
        # In the graph of a block, the number is not known before the block is called.
        if not isinstance(inputs, keras.KerasTensor):
            kwargs["application"] = 0
            if self.applications > 1:
                kwargs["application"], inputs = number_of_call(self, inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self,
        inputs: Tensor,
        training: bool | None = None,
        mask: Tensor | None = None,
        application: int | Tensor | None = None,
    ) -> Tensor:
        if application is None:
            if self.applications > 1 and not gives_shapes_alone():
                raise unknown_application(self, "whose method `call` is called by itself")
            application = 0
        if mask is None:
            # Keras looks for masks only if there is one tensor among the arguments.
            mask = getattr(inputs, "_keras_mask", None)
        if isinstance(application, int):
            return self.normalization(application)(inputs, training=training, mask=mask)
        return self._chosen(ops.cast(application, "int32"), inputs, training, mask)

    def _chosen(self, application, inputs, training, mask):
        """Returns the outputs for an application that is known only when a graph is run.

        The first normalization computes with the weights of that application in place of its own.
        """
        first = self.normalizations[0]
        index = ops.clip(application, 0, self.applications - 1)
        is_valid = application >= 0
        given = []
        for variable in first.variables:
            all_own = [getattr(other, variable.name) for other in self.normalizations]
            value = ops.convert_to_tensor(variable)
            if all_own[-1] is not variable:
                rows = ops.concatenate([ops.expand_dims(own, 0) for own in all_own])
                value = ops.where(is_valid, ops.take(rows, index, axis=0), math.nan)
            given.append((variable, all_own, value))
        mapping = [(variable, value) for variable, _, value in given]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = first(inputs, training=training, mask=mask)
        for variable, all_own, value in given:
            new = scope.get_current_value(variable)
            if new is value or variable.name in LEARNED:
                continue
            if all_own[-1] is variable:
                variable.assign(new)
                continue
            for place, own in enumerate(all_own):
                own.assign(ops.where(ops.logical_and(is_valid, index == place), new, own))
        return outputs

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"applications": self.applications, "share": self.share}


def _checked(application):
    """Returns an application as an int or, if it is known only when a graph is run, a tensor."""
    value = application
    if not isinstance(application, keras.KerasTensor):
        value = known_int(application)
    if isinstance(value, int):
        return check_int("application", value, at_least=0)
    dtype = keras.backend.standardize_dtype(getattr(value, "dtype", None) or "float32")
    if not keras.backend.is_int_dtype(dtype) or len(getattr(value, "shape", (None,))):
        raise ArgumentError(
            "application", "be an int, 0 or more, or an int tensor without axes", application
        )
    return value

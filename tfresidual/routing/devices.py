"""The devices on which functions of images run: one, or the replicas of a strategy.

Probes compute per image, so every device can have a share of the images. TensorFlow only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.compiled import compiled
from tfresidual.routing.data import joined, sliced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tfresidual.routing.chain import Chain


class OneDevice:
    """The usual devices of TensorFlow: images are not shared out."""

    def split(self, values: Any) -> Any:
        """Returns tensors, in any structure, as the functions of `compiled` take them."""
        return values

    def joined(self, found: Any, count: int) -> Any:
        """Returns what functions of `compiled` returned for so many images as tensors."""
        del count
        return found

    def compiled(self, function: Callable[..., Any], signature: Sequence[Any]) -> Any:
        """Returns a compiled function of what `split` returns."""
        return compiled(function, signature)


class Replicas:
    """The devices of a `tf.distribute.MirroredStrategy`, each of which has a share of the images.

    Training leaves every replica with moving averages of its own, since Keras adds up gradients
    alone. Those of the first one count, which are those that are saved.

    Args:
        strategy: the strategy.
        weights: `keras.Variable`s of the network, all that may be read.
    """

    def __init__(
        self, strategy: tf.distribute.MirroredStrategy, weights: Sequence[keras.Variable]
    ) -> None:
        self._strategy = strategy
        self._count = strategy.num_replicas_in_sync
        self._weights = weights

    def split(self, values: Any) -> Any:
        """Returns equal shares of tensors, one per replica; copies of the last image fill up."""
        tensors = [tensor for tensor in tf.nest.flatten(values) if tensor.shape.rank]
        if not tensors:
            return (values,) * self._count
        images = len(tensors[0])
        share = -(-images // self._count)
        rows = tf.minimum(tf.range(share * self._count), images - 1)
        filled = tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), values)
        starts = range(0, share * self._count, share)
        return tuple(sliced(filled, slice(start, start + share)) for start in starts)

    def joined(self, found: Any, count: int) -> Any:
        """Returns what all replicas returned as one, without what was filled up."""
        return sliced(joined(found), slice(count))

    def compiled(self, function: Callable[..., Any], signature: Sequence[Any]) -> Any:
        """Returns a compiled function of shares; it returns a tuple of the results of all."""
        own = [weight for weight in self._weights if not weight.trainable]

        def on_all(parts):
            local = self._strategy.experimental_local_results
            known = [(weight, tf.convert_to_tensor(local(weight.value)[0])) for weight in own]

            def on_one():
                with keras.StatelessScope(state_mapping=known):
                    return function(*parts[this_replica()])

            return local(self._strategy.run(on_one))

        whole = compiled(on_all, [(tuple(signature),) * self._count])
        return lambda *shares: whole(tuple(zip(*shares, strict=True)))


def this_replica() -> int:
    """Returns the number of the replica that runs or is traced, from 0; 0 without a strategy."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def devices_of(chain: Chain) -> OneDevice | Replicas:
    """Returns the devices of the strategy of a chain, or those of TensorFlow if it has none."""
    if chain.strategy is None:
        return OneDevice()
    return Replicas(chain.strategy, chain.variables)


def checked_strategy(strategy: Any) -> tf.distribute.MirroredStrategy | None:
    """Returns the strategy of an argument, `None` if it has one replica."""
    if not isinstance(strategy, tf.distribute.Strategy) or is_elsewhere(strategy):
        raise ArgumentError(
            "strategy",
            "be a `tf.distribute.MirroredStrategy`, whose devices are all in this machine",
            received=f"strategy={strategy!r} of type {type(strategy).__name__}",
        )
    return mirrored_strategy(strategy)


def is_elsewhere(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether a strategy has several replicas of another kind than `mirrored_strategy`."""
    return strategy.num_replicas_in_sync > 1 and mirrored_strategy(strategy) is None


def mirrored_strategy(strategy: tf.distribute.Strategy) -> tf.distribute.MirroredStrategy | None:
    """Returns a strategy over whose replicas probes share out images; `None` for others."""
    is_mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
    return strategy if is_mirrored and strategy.num_replicas_in_sync > 1 else None

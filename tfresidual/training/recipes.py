"""Training recipes of the papers and our own, scaled to any number of epochs."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import keras
from keras import ops

from tfresidual.definitions import data_sets
from tfresidual.definitions.arguments import check_choice, check_number

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.definitions.types import RecipeName


@dataclasses.dataclass(frozen=True)
class Recipe(data_sets.Recipe):
    """SGD with momentum and a learning rate that depends on the epoch.

    Attributes:
        name: the name in `RECIPES`.
        epochs: number of epochs in the paper, or our choice where it prints none.
        rates: pairs (epoch, learning rate) in chronological order, from epoch 0.
        augment: whether images are flipped and cropped at random.
        source: where the paper describes the recipe.
        momentum: momentum of SGD.
        nesterov: whether it is Nesterov's.
        linear: whether the rate changes on straight lines between the pairs; otherwise each rate
            holds until the next one.
        weight_decay: decoupled weight decay, 0 or more: each step multiplies all weights by
            `1 - rate * weight_decay` before it is taken.
        l2: 0 or more: `l2` times each weight is added to its gradient, as `l2 / 2` times the
            squared norm of all weights in the loss would.
    """

    @property
    def learning_rate(self) -> float:
        """The highest learning rate, which is the first one but in `"one_cycle"`."""
        return max(rate for _, rate in self.rates)

    def with_learning_rate(self, learning_rate: float) -> Recipe:
        """Returns the recipe with all its learning rates changed by the same factor.

        With SGD, the rate usually changes with the batch: a recipe of 0.1 for batches of 128
        becomes `recipe.with_learning_rate(0.0125)` for batches of 16.

        Args:
            learning_rate: the highest learning rate, from 1e-9 to 1e9.
        """
        learning_rate = check_number("learning_rate", learning_rate, over=0)
        rates = tuple(
            (epoch, learning_rate * (rate / self.learning_rate)) for epoch, rate in self.rates
        )
        return dataclasses.replace(self, rates=rates)

    def schedule(
        self, epochs: int, steps_per_epoch: int
    ) -> keras.optimizers.schedules.LearningRateSchedule:
        """Returns a schedule that changes the rate after the same fractions as in the paper.

        Args:
            epochs: number of epochs of the training run.
            steps_per_epoch: number of optimizer steps per epoch.
        """
        steps = epochs * steps_per_epoch
        if self.linear:
            return LinearRates(
                [epoch / self.epochs * steps for epoch, _ in self.rates],
                [rate for _, rate in self.rates],
            )
        # The schedule uses a rate up to and including its boundary.
        return keras.optimizers.schedules.PiecewiseConstantDecay(
            [round(first / self.epochs * steps) - 1 for first, _ in self.rates[1:]],
            [rate for _, rate in self.rates],
        )

    def optimizer(self, epochs: int, steps_per_epoch: int) -> keras.optimizers.Optimizer:
        """Returns the paper's optimizer for a training run of any length, see `schedule`."""
        options = {
            "learning_rate": self.schedule(epochs, steps_per_epoch),
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "weight_decay": self.weight_decay or None,
        }
        return SGDWithL2(**options, l2=self.l2) if self.l2 else keras.optimizers.SGD(**options)


@keras.saving.register_keras_serializable(package="tfresidual")
class LinearRates(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate on straight lines between points.

    Args:
        steps: floats in ascending order, the first one 0.
        rates: the learning rate at each of them, and after the last one.
    """

    def __init__(self, steps, rates):
        super().__init__()
        self.steps, self.rates = list(steps), list(rates)

    def __call__(self, step):
        step, rate = ops.cast(step, "float32"), self.rates[0]
        points = list(zip(self.steps, self.rates, strict=True))
        for (begin, before), (end, after) in itertools.pairwise(points):
            rate += (after - before) * ops.clip((step - begin) / (end - begin), 0, 1)
        return rate

    def get_config(self):
        return {"steps": self.steps, "rates": self.rates}


@keras.saving.register_keras_serializable(package="tfresidual")
class SGDWithL2(keras.optimizers.SGD):
    """SGD that adds `l2` times each weight to its gradient, see `Recipe`.

    The loss that is logged stays that of the images. Keras' regularizers of layers do the same to
    the gradient, and are part of the loss.
    """

    def __init__(self, *args, l2, **kwargs):
        super().__init__(*args, **kwargs)
        self.l2 = l2

    def update_step(self, gradient, variable, learning_rate):
        gradient = ops.add(gradient, ops.cast(self.l2 * variable, gradient.dtype))
        super().update_step(gradient, variable, learning_rate)

    def get_config(self):
        return super().get_config() | {"l2": self.l2}


# The batch sizes of Hauser 2019, section 3: pairs of the first number of blocks
# per stage and the batch size.
_HAUSER_BATCH_SIZES = {
    "cifar10": ((1, 256), (30, 128), (60, 64)),
    "mnist": ((1, 128), (70, 64)),
}

RECIPES = {name: Recipe(**vars(found)) for name, found in data_sets.RECIPES.items()}


def recipe(
    name: RecipeName,
    *,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    l2: float | None = None,
) -> Recipe:
    """Returns the training recipe of a paper.

    Appendix A.4 of "Iterative convergent computation is not a useful inductive bias for ResNets"
    prints two recipes for Digitclutter: `"digitclutter"` (400 epochs) for it alone, and
    `"digitclutter_200"` (200 epochs) for CIFAR-100 and Digitclutter together.

    Of its training, Hauser 2019 prints the augmentation, flips and crops on CIFAR-10 and none on
    MNIST, and the batch sizes, see `hauser_batch_size`. Everything else in `"hauser"` is our
    choice: SGD with momentum 0.9 for 200 epochs, and a rate of 0.1 that is divided by 10 at one
    half and at three quarters of them, as He et al. 2016 divide it.

    `"one_cycle"` is for few epochs, and in no paper: the rate rises from 0.01 to 0.4 in the first
    quarter of the training and falls to 0 in the rest, with Nesterov's momentum and decoupled
    weight decay of 5e-4, for batches of 128. The other recipes have no weight decay.

    Args:
        name: for Jastrzebski et al. 2018, the network: `"resnet110"`, `"single_representation"`,
            `"avg_pooling"` or `"wide"`; for "Iterative convergent computation is not a useful
            inductive bias for ResNets", the dataset, or `"digitclutter_200"`; for Hauser 2019,
            `"hauser"`; or `"one_cycle"`.
        learning_rate: see `Recipe.with_learning_rate`; `None` for the recipe's.
        weight_decay: see `Recipe`, from 0 to 1; `None` for the recipe's.
        l2: see `Recipe`, from 0 to 1; `None` for the recipe's.
    """
    check_choice("name", name, RECIPES)
    found = RECIPES[name]
    if weight_decay is not None:
        found = dataclasses.replace(found, weight_decay=weight_decay)
    if l2 is not None:
        found = dataclasses.replace(found, l2=l2)
    return found if learning_rate is None else found.with_learning_rate(learning_rate)


def hauser_batch_size(blocks: int, *, data: Literal["cifar10", "mnist"] = "cifar10") -> int:
    """Returns the batch size with which Hauser 2019, section 3, trains a network of some depth.

    Deeper networks have smaller batches, to fit into memory: on CIFAR-10, 256 images up to 28
    blocks per stage, 128 from 30 on and 64 from 60 on; on MNIST, 128 up to 60 and 64 from 70 on.
    The paper trains no network between these depths, which belong to the shallower ones here.

    Args:
        blocks: number of blocks of each stage, 1 or more.
        data: `"cifar10"` or `"mnist"`.
    """
    return [size for first, size in _HAUSER_BATCH_SIZES[data] if first <= blocks][-1]

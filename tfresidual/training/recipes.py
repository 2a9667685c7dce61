"""Training recipes of the papers, scaled to any number of epochs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import keras

from tfresidual.datasets import declarations
from tfresidual.definitions.arguments import check_choice, check_int, check_number

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.definitions.types import RecipeName


@dataclasses.dataclass(frozen=True)
class Recipe(declarations.Recipe):
    """SGD with momentum and a piecewise constant learning rate.

    Attributes:
        name: the name in `RECIPES`.
        epochs: number of epochs in the paper, or our choice where it prints none.
        rates: pairs (first epoch, learning rate) in chronological order, from epoch 0.
        augment: whether images are flipped and cropped at random.
        source: where the paper describes the recipe.
        momentum: momentum of SGD.
    """

    def with_learning_rate(self, learning_rate: float) -> Recipe:
        """Returns the recipe with all its learning rates changed by the same factor.

        With SGD, the rate usually changes with the batch: a recipe of 0.1 for batches of 128
        becomes `recipe.with_learning_rate(0.0125)` for batches of 16.

        Args:
            learning_rate: the first learning rate, from 1e-9 to 1e9.
        """
        first = check_number("learning_rate", learning_rate, at_least=1e-9, at_most=1e9)
        rates = tuple((epoch, first * (rate / self.rates[0][1])) for epoch, rate in self.rates)
        return dataclasses.replace(self, rates=rates)

    def schedule(
        self, epochs: int, steps_per_epoch: int
    ) -> keras.optimizers.schedules.LearningRateSchedule:
        """Returns a schedule that changes the rate after the same fractions as in the paper.

        Args:
            epochs: number of epochs of the training run.
            steps_per_epoch: number of optimizer steps per epoch.
        """
        epochs = check_int("epochs", epochs, at_least=1)
        steps = epochs * check_int("steps_per_epoch", steps_per_epoch, at_least=1)
        # The schedule uses a rate up to and including its boundary.
        return keras.optimizers.schedules.PiecewiseConstantDecay(
            [round(first / self.epochs * steps) - 1 for first, _ in self.rates[1:]],
            [rate for _, rate in self.rates],
        )

    def optimizer(self, epochs: int, steps_per_epoch: int) -> keras.optimizers.Optimizer:
        """Returns the paper's optimizer for a training run of any length, see `schedule`."""
        schedule = self.schedule(epochs, steps_per_epoch)
        return keras.optimizers.SGD(schedule, momentum=self.momentum)


# The batch sizes of Hauser 2019, section 3: pairs of the first number of blocks
# per stage and the batch size.
_HAUSER_BATCH_SIZES = {
    "cifar10": ((1, 256), (30, 128), (60, 64)),
    "mnist": ((1, 128), (70, 64)),
}

RECIPES = {name: Recipe(**vars(found)) for name, found in declarations.RECIPES.items()}


def recipe(name: RecipeName, learning_rate: float | None = None) -> Recipe:
    """Returns the training recipe of a paper.

    Appendix A.4 of "Iterative convergent computation is not a useful inductive bias for ResNets"
    prints two recipes for Digitclutter: `"digitclutter"` (400 epochs) for it alone, and
    `"digitclutter_200"` (200 epochs) for CIFAR-100 and Digitclutter together.

    Of its training, Hauser 2019 prints the augmentation, flips and crops on CIFAR-10 and none on
    MNIST, and the batch sizes, see `hauser_batch_size`. Everything else in `"hauser"` is our
    choice: SGD with momentum 0.9 for 200 epochs, and a rate of 0.1 that is divided by 10 at one
    half and at three quarters of them, as He et al. 2016 divide it.

    Args:
        name: for Jastrzebski et al. 2018, the network: `"resnet110"`, `"single_representation"`,
            `"avg_pooling"` or `"wide"`; for "Iterative convergent computation is not a useful
            inductive bias for ResNets", the dataset, or `"digitclutter_200"`; for Hauser 2019,
            `"hauser"`.
        learning_rate: see `Recipe.with_learning_rate`; `None` for the paper's.
    """
    check_choice("name", name, RECIPES)
    found = RECIPES[name]
    return found if learning_rate is None else found.with_learning_rate(learning_rate)


def hauser_batch_size(blocks: int, data: Literal["cifar10", "mnist"] = "cifar10") -> int:
    """Returns the batch size with which Hauser 2019, section 3, trains a network of some depth.

    Deeper networks have smaller batches, to fit into memory: on CIFAR-10, 256 images up to 28
    blocks per stage, 128 from 30 on and 64 from 60 on; on MNIST, 128 up to 60 and 64 from 70 on.
    The paper trains no network between these depths, which belong to the shallower ones here.

    Args:
        blocks: number of blocks of each stage, 1 or more.
        data: `"cifar10"` or `"mnist"`.
    """
    check_int("blocks", blocks, at_least=1)
    check_choice("data", data, _HAUSER_BATCH_SIZES)
    return [size for first, size in _HAUSER_BATCH_SIZES[data] if first <= blocks][-1]

"""Training recipes of the papers, scaled to any number of epochs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import keras

from tfresidual.arguments import check_choice, check_int

if TYPE_CHECKING:
    from tfresidual.types import RecipeName


@dataclasses.dataclass(frozen=True)
class Recipe:
    """SGD with momentum and a piecewise constant learning rate.

    Attributes:
        name: str, the name in `RECIPES`.
        epochs: int, number of epochs in the paper.
        rates: pairs (first epoch, learning rate) in chronological order; the first pair begins at
            epoch 0.
        augment: whether images are flipped and cropped at random.
        source: where the paper describes the recipe.
        momentum: float, momentum of SGD.
    """

    name: RecipeName
    epochs: int
    rates: tuple[tuple[int, float], ...]
    augment: bool
    source: str
    momentum: float = 0.9

    def schedule(
        self, epochs: int, steps_per_epoch: int
    ) -> keras.optimizers.schedules.LearningRateSchedule:
        """Returns the learning-rate schedule for a training run of any length.

        The learning rate changes after the same fraction of the training run as in the paper.

        Args:
            epochs: int, number of epochs of the training run.
            steps_per_epoch: int, number of optimizer steps per epoch.

        Returns:
            A `keras.optimizers.schedules.PiecewiseConstantDecay`.

        Raises:
            ValueError: if an argument is not a positive int.
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


_INFERENCE = "Jastrzebski et al. 2018, section 4"
_CONVERGENCE = "Iterative convergent computation is not a useful inductive bias, appendix A"

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "resnet110",
            300,
            ((0, 0.1), (80, 0.01), (120, 0.001), (200, 1e-5), (240, 1.1e-5)),
            True,
            _INFERENCE,
        ),
        Recipe(
            "single_representation",
            200,
            ((0, 0.1), (40, 0.02), (60, 0.004), (80, 0.0008)),
            True,
            _INFERENCE,
        ),
        Recipe(
            "avg_pooling",
            100,
            ((0, 0.1), (40, 0.02), (60, 0.004), (80, 0.0008)),
            True,
            _INFERENCE,
        ),
        Recipe("wide", 100, ((0, 0.1), (60, 0.02)), True, _INFERENCE),
        Recipe("cifar10", 400, ((0, 0.1), (200, 0.01), (300, 0.001)), True, _CONVERGENCE),
        Recipe("cifar100", 200, ((0, 0.1), (100, 0.01), (150, 0.001)), True, _CONVERGENCE),
        Recipe("mnist", 400, ((0, 0.025), (200, 0.01), (300, 0.004)), False, _CONVERGENCE),
        Recipe("digitclutter", 400, ((0, 0.05), (200, 0.01), (300, 0.002)), False, _CONVERGENCE),
    )
}


def recipe(name: RecipeName) -> Recipe:
    """Returns the training recipe of a paper, by name.

    Args:
        name: for Jastrzebski et al. 2018, the network: `"resnet110"`, `"single_representation"`,
            `"avg_pooling"` or `"wide"`; for "Iterative convergent computation is not a useful
            inductive bias for ResNets", the dataset: `"cifar10"`, `"cifar100"`, `"mnist"` or
            `"digitclutter"`.

    Returns:
        A `Recipe`.

    Raises:
        ValueError: if there is no recipe of this name.
    """
    check_choice("name", name, RECIPES)
    return RECIPES[name]

"""The papers' ways of training, stretched or shrunk to any number of epochs."""

import dataclasses

import keras

from tfresidual.arguments import check_choice, check_int


@dataclasses.dataclass(frozen=True)
class Recipe:
    """SGD with momentum under a stepwise learning rate.

    Attributes:
        name: str, the name in `RECIPES`.
        epochs: int, how long the paper trains.
        rates: pairs (first epoch, learning rate) in the order of time; the first begins at 0.
        augment: whether images are flipped and cropped at random.
        source: where the paper says so.
        momentum: float, momentum of SGD.
    """

    name: str
    epochs: int
    rates: tuple[tuple[int, float], ...]
    augment: bool
    source: str
    momentum: float = 0.9

    def schedule(self, epochs, steps_per_epoch):
        """The learning rate over the steps of a training of any length.

        The changes of rate come at the same share of the training as in the paper.

        Args:
            epochs: int, how long the training is.
            steps_per_epoch: int, optimizer steps in an epoch.

        Returns:
            A `keras.optimizers.schedules.PiecewiseConstantDecay`.

        Raises:
            ValueError: if an argument is not a positive int.
        """
        epochs = check_int("epochs", epochs, at_least=1)
        steps = epochs * check_int("steps_per_epoch", steps_per_epoch, at_least=1)
        # The schedule keeps a rate up to and including its boundary.
        return keras.optimizers.schedules.PiecewiseConstantDecay(
            [round(first / self.epochs * steps) - 1 for first, _ in self.rates[1:]],
            [rate for _, rate in self.rates],
        )

    def optimizer(self, epochs, steps_per_epoch):
        """The paper's optimizer for a training of any length, see `schedule`."""
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


def recipe(name):
    """A paper's way of training, by name.

    Args:
        name: of Jastrzebski et al. 2018, `"resnet110"`, `"single_representation"`,
            `"avg_pooling"` or `"wide"`; of "Iterative convergent computation is not a useful
            inductive bias for ResNets", the dataset: `"cifar10"`, `"cifar100"`, `"mnist"` or
            `"digitclutter"`.

    Returns:
        A `Recipe`.

    Raises:
        ValueError: if there is none of this name.
    """
    check_choice("name", name, RECIPES)
    return RECIPES[name]

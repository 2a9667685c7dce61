"""The data sets and the training recipes, as data.

A data set is added here, by one `DataSet`: loading, descriptions, recipes, the command line and the
checks of settings read it. It imports only the standard library, so that `--help` is quick.
"""

from __future__ import annotations

import dataclasses

# Pairs of an epoch and the learning rate there: from then on, or, if the rates are `linear`, on a
# straight line to the next one.
Rates = tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What `tfresidual.training.Recipe` holds."""

    name: str
    epochs: int
    rates: Rates
    augment: bool
    source: str
    momentum: float = 0.9
    nesterov: bool = False
    linear: bool = False
    weight_decay: float = 0.0
    l2: float = 0.0


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set of images.

    Attributes:
        name: its name here, in tensorflow-datasets and of its recipe.
        title: for headings.
        input_shape: height, width and channels of an image.
        classes: the number of classes.
        sizes: the numbers of training and of test images. If they are `drawn`, there can be more,
            and these are the defaults.
        statistics: mean and standard deviation of the training images per channel, on a scale
            where 255 is 1. For images with several labels, by their number; otherwise under 1.
        augment: whether training images are flipped and cropped at random unless a user says.
        epochs: of its recipe.
        rates: of its recipe.
        source: where the recipe is described.
        drawn: the module of `tfresidual.datasets` with a function `builder` that draws the images,
            those for validation too; or `None` for a public data set whose features in
            tensorflow-datasets are `image` and `label`.
    """

    name: str
    title: str
    input_shape: tuple[int, int, int]
    classes: int
    sizes: tuple[int, int]
    statistics: dict[int, tuple[tuple[float, ...], tuple[float, ...]]]
    augment: bool
    epochs: int
    rates: Rates
    source: str
    drawn: str | None = None

    @property
    def labels(self) -> tuple[int, ...]:
        """The numbers of labels that images can have, if these are several."""
        return tuple(count for count in self.statistics if count > 1)

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.name, self.epochs, self.rates, self.augment, self.source)


CONVERGENCE = "Iterative convergent computation is not a useful inductive bias, appendix A"
INFERENCE = "Jastrzebski et al. 2018, section 4"
HAUSER = "Hauser 2019, section 3: the augmentation; optimizer, rates and epochs are our choice"
ONE_CYCLE = (
    "our choice, for few epochs, after Smith and Topin 2017, https://arxiv.org/abs/1708.07120"
)

# Mean and standard deviation of CIFAR and MNIST are the values in common use. Those of Digitclutter
# are our own measurements, over the first 100,000 training images of seed 0.
_DATA_SETS = (
    DataSet(
        name="digitclutter",
        title="Digitclutter",
        input_shape=(32, 32, 1),
        classes=10,
        sizes=(20_000, 2_000),
        statistics={
            3: ((0.4492,), (0.2845,)),
            4: ((0.4493,), (0.3032,)),
            5: ((0.4504,), (0.3163,)),
        },
        augment=False,
        epochs=400,
        rates=((0, 0.05), (200, 0.01), (300, 0.002)),
        source=CONVERGENCE,
        drawn="digitclutter",
    ),
    DataSet(
        name="cifar10",
        title="CIFAR-10",
        input_shape=(32, 32, 3),
        classes=10,
        sizes=(50_000, 10_000),
        statistics={1: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))},
        augment=True,
        epochs=400,
        rates=((0, 0.1), (200, 0.01), (300, 0.001)),
        source=CONVERGENCE,
    ),
    DataSet(
        name="cifar100",
        title="CIFAR-100",
        input_shape=(32, 32, 3),
        classes=100,
        sizes=(50_000, 10_000),
        statistics={1: ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))},
        augment=True,
        epochs=200,
        rates=((0, 0.1), (100, 0.01), (150, 0.001)),
        source=CONVERGENCE,
    ),
    DataSet(
        name="mnist",
        title="MNIST",
        input_shape=(28, 28, 1),
        classes=10,
        sizes=(60_000, 10_000),
        statistics={1: ((0.1307,), (0.3081,))},
        augment=False,
        epochs=400,
        rates=((0, 0.025), (200, 0.01), (300, 0.004)),
        source=CONVERGENCE,
    ),
)
DATA_SETS = {data.name: data for data in _DATA_SETS}

_OF_NETWORKS = (
    Recipe("digitclutter_200", 200, ((0, 0.1), (100, 0.01), (150, 0.001)), False, CONVERGENCE),
    Recipe(
        "resnet110",
        300,
        ((0, 0.1), (80, 0.01), (120, 0.001), (200, 1e-5), (240, 1.1e-5)),
        True,
        INFERENCE,
    ),
    Recipe(
        "single_representation",
        200,
        ((0, 0.1), (40, 0.02), (60, 0.004), (80, 0.0008)),
        True,
        INFERENCE,
    ),
    Recipe("avg_pooling", 100, ((0, 0.1), (40, 0.02), (60, 0.004), (80, 0.0008)), True, INFERENCE),
    Recipe("wide", 100, ((0, 0.1), (60, 0.02)), True, INFERENCE),
    Recipe("hauser", 200, ((0, 0.1), (100, 0.01), (150, 0.001)), True, HAUSER),
    Recipe(
        "one_cycle",
        20,
        ((0, 0.01), (5, 0.4), (20, 0.0)),
        True,
        ONE_CYCLE,
        nesterov=True,
        linear=True,
        weight_decay=5e-4,
    ),
)
RECIPES = {recipe.name: recipe for recipe in (*(d.recipe for d in _DATA_SETS), *_OF_NETWORKS)}

"""Training the papers' way: recipes, metrics, runs that survive being killed."""

from tfresidual.training.exact_match import ExactMatch
from tfresidual.training.multi_label import MultiLabelCrossentropy
from tfresidual.training.recipes import RECIPES, Recipe, recipe
from tfresidual.training.train import Training, compile_network, train

__all__ = [
    "RECIPES",
    "ExactMatch",
    "MultiLabelCrossentropy",
    "Recipe",
    "Training",
    "compile_network",
    "recipe",
    "train",
]

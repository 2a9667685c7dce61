"""Training as in the papers: recipes, metrics, and runs that can be killed and resumed."""

from tfresidual.training.exact_match import ExactMatch
from tfresidual.training.gradient_coupling import GradientCoupling, coupling_kernel
from tfresidual.training.multi_label import MultiLabelCrossentropy
from tfresidual.training.readouts import fit_readouts
from tfresidual.training.recipes import RECIPES, Recipe, hauser_batch_size, recipe
from tfresidual.training.train import Training, compile_network, train

__all__ = [
    "RECIPES",
    "ExactMatch",
    "GradientCoupling",
    "MultiLabelCrossentropy",
    "Recipe",
    "Training",
    "compile_network",
    "coupling_kernel",
    "fit_readouts",
    "hauser_batch_size",
    "recipe",
    "train",
]

"""Figures 2 to 7, 12 to 14 and 20 of Jastrzebski et al. 2018: what every block does.

    python experiments/iterative_inference.py --size smoke
    python experiments/iterative_inference.py --size small
    python experiments/iterative_inference.py --size paper --data-dir ~/tensorflow_datasets

One study per network, each in its own folder with a report; an interrupted run resumes.
Sizes: `smoke` shows that everything works; `small` is Digitclutter, for two cores; `paper` is the
paper's four networks on CIFAR-10 at full length, for a GPU.
"""

import argparse
from pathlib import Path

from tfresidual import training
from tfresidual.jobs import study
from tfresidual.machine.console import terminal

PAPER = ("resnet110", "single_representation", "avg_pooling", "wide")


def settings_of(size, data_dir):
    """Returns the settings of the studies of a size, by the name of their folder."""
    if size == "paper":
        return {
            name: study.Settings(
                data="cifar10",
                data_dir=data_dir,
                network=name,
                recipe=name,
                epochs=training.recipe(name).epochs,
                batch_size=128,
                validation=5000,
            )
            for name in PAPER
        }
    if size == "small":
        return {
            f"resnet{depth}": study.Settings(data_dir=data_dir, depth=depth, epochs=6)
            for depth in (14, 20, 32)
        }
    smallest = study.Settings(
        data_dir=data_dir,
        depth=14,
        width=4,
        epochs=2,
        train_size=500,
        validation=100,
        test_size=100,
    )
    return {"resnet14": smallest}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=["smoke", "small", "paper"], default="smoke")
    parser.add_argument("--data-dir", help="folder of tensorflow-datasets")
    parser.add_argument("--out", type=Path, default=Path("runs/iterative_inference"))
    arguments = parser.parse_args()
    for name, settings in settings_of(arguments.size, arguments.data_dir).items():
        folder = arguments.out / arguments.size / name
        print(study.run(folder, settings, terminal()))

"""A network of fewer blocks: pruned from a deep one, or trained from scratch?

    python experiments/depth_both_ways.py --size smoke
    python experiments/depth_both_ways.py --size small --data-dir ~/tensorflow_datasets

For every seed, a deep network is trained, and a third of its blocks is taken out: by each criterion
of `probes.block_importance`, measured again after every block, and at random. Each of these gets
the statistics of batch normalization anew, and a few epochs of training. Beside them, at the same
number of blocks: a network trained from scratch with as many blocks in every stage, one with the
blocks where the stopping rule asks for them (the scaled distances of the stages of the deep
network, divided by one epsilon), and, as a control, the deep network with the same few epochs more.
Blocks are chosen on validation images and networks judged on test images. Sizes: `smoke` shows that
everything works, with Digitclutter; `small` is a part of CIFAR-10, for two cores. What is trained
is not trained again; `--kept` draws the frames that are kept in the repository.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pandas as pd
from drawing import kept_frames, panels, parser_of, ranged, show, write_frames

import tfresidual as tfr
from tfresidual import datasets, probes, routes, surgery, training
from tfresidual.jobs.building import build
from tfresidual.jobs.data import prepare
from tfresidual.jobs.settings import Settings, describe
from tfresidual.machine.files import replacing
from tfresidual.probes.block_importance import CRITERIA
from tfresidual.surgery.pruning import remeasured

KEPT = Path(__file__).parent / "frames" / "depth_both_ways"
IMAGES = Path(__file__).parents[1] / "docs" / "images"
DEEP, RANDOM, SCRATCH, RULE = "deep", "random", "from scratch", "by the rule"
REMOVED, STATISTICS, TUNED, TRAINED = "removed", "statistics", "fine-tuned", "trained"
STEPS = (TRAINED, REMOVED, STATISTICS, TUNED)
# The highest rates of the one-cycle schedule, of a training and of the epochs after it.
RATE, TUNING_RATE = 0.2, 0.1


@dataclasses.dataclass(frozen=True)
class Size:
    """What is trained, and how many blocks go."""

    settings: Settings
    blocks: int
    tuning: int
    seeds: int


SIZES = {
    "smoke": Size(
        Settings(depth=20, width=4, epochs=1, train_size=128, validation=64, test_size=64), 2, 1, 1
    ),
    "small": Size(
        Settings(
            data="cifar10",
            depth=56,
            width=8,
            epochs=10,
            batch_size=128,
            train_size=16_000,
            validation=2_000,
            test_size=5_000,
        ),
        9,
        3,
        3,
    ),
}


class Experiment:
    """The networks of a seed, in folders of their own.

    Args:
        size: a `Size`.
        seed: int.
        out: the folder.
        data_dir: folder of tensorflow-datasets, or `None`.
    """

    def __init__(self, size, seed, out, data_dir):
        self.size, self.out = size, out / f"seed{seed}"
        self.settings = dataclasses.replace(size.settings, seed=seed, data_dir=data_dir)
        self.train, self.validation, self.test = prepare(self.settings)
        self.rows = []

    def fitted(self, name, network, epochs, rate):
        """Returns a network trained in the folder of a name, where it may be already."""
        keras.utils.set_random_seed(self.settings.seed)
        several = describe(self.settings).multi_label
        metric = training.compile_network(
            network,
            "one_cycle",
            epochs=epochs,
            steps_per_epoch=len(self.train),
            multi_label=several,
            learning_rate=rate,
        )
        folder = self.out / name.replace(" ", "_")
        return training.train(
            network, self.train, self.validation, folder=folder, epochs=epochs, metric=metric
        ).network

    def add(self, name, step, network):
        """Adds a row with what a network does on test images."""
        chain = tfr.chain(network)
        frame = probes.evaluate_routes(chain, self.test, [routes.unperturbed(chain)])
        stages = " ".join(str(len(stage.blocks)) for stage in chain.stages)
        row = {"seed": self.settings.seed, "network": name, "step": step, "stages": stages}
        row |= frame[["error", "cross_entropy"]].iloc[0].to_dict()
        self.rows.append(row | {"parameters": network.count_params()})
        print(pd.DataFrame(self.rows[-1:]).to_string(index=False, header=False), flush=True)

    def measured(self):
        """Trains, prunes and measures all networks of the seed; returns rows and plans."""
        keras.utils.set_random_seed(self.settings.seed)
        deep = build(self.settings)
        blocks = [len(stage.blocks) for stage in tfr.chain(deep).stages]
        left = sum(blocks) - self.size.blocks
        deep = self.fitted(DEEP, deep, self.settings.epochs, RATE)
        self.add(DEEP, TRAINED, deep)
        self.tune(DEEP, keras.models.clone_model(deep), deep.get_weights())
        plans = []
        for by in CRITERIA:
            plan = self.plan(deep, by)
            plans.append(plan.assign(by=by, seed=self.settings.seed))
            self.shorten(by, surgery.without_blocks(deep, plan))
        self.shorten(RANDOM, surgery.without_blocks(deep, self.at_random(deep)))
        for name, depths in ((SCRATCH, even(left, len(blocks))), (RULE, self.by_rule(deep, left))):
            keras.utils.set_random_seed(self.settings.seed)
            network = build(dataclasses.replace(self.settings, depth=None), depths)
            network = self.fitted(name, network, self.settings.epochs, RATE)
            self.add(name, TRAINED, network)
            self.tune(name, keras.models.clone_model(network), network.get_weights())
        return pd.DataFrame(self.rows), pd.concat(plans)

    def plan(self, deep, by):
        """Returns the plan by a criterion, from its file if it is there."""
        path = self.out / f"plan_{by}.csv"
        if not path.exists():
            frame = surgery.plan(
                deep,
                self.validation,
                blocks=self.size.blocks,
                by=by,
                test=self.test,
                batch_sizes=(),
            )
            with replacing(path) as written:
                frame.to_csv(written, index=False)
        return pd.read_csv(path)

    def shorten(self, name, network):
        """Measures a network without blocks, then with statistics anew, then tuned."""
        self.add(name, REMOVED, network)
        keras.utils.set_random_seed(self.settings.seed)
        remeasured(network, datasets.plain(self.train), tfr.chain(network), True)
        self.add(name, STATISTICS, network)
        self.tune(name, network, network.get_weights())

    def tune(self, name, network, weights):
        network.set_weights(weights)
        network = self.fitted(f"{name} {TUNED}", network, self.size.tuning, TUNING_RATE)
        self.add(name, TUNED, network)

    def at_random(self, deep):
        """Returns blocks that can be taken out, chosen at random."""
        places = [(b.stage, b.index) for b in tfr.chain(deep).blocks if b.keeps_shape]
        rng = np.random.default_rng(self.settings.seed)
        chosen = rng.choice(len(places), self.size.blocks, replace=False)
        return [places[index] for index in sorted(chosen)]

    def by_rule(self, deep, left):
        """Returns the depths of the stages that the rule asks for, with a number of blocks."""
        frame = probes.computational_distance(tfr.chain(deep), self.validation)
        distances = frame["scaled_distance"].to_numpy(float)[:-1]
        # The smallest epsilon at which the stages have this many blocks or fewer.
        depths = None
        for epsilon in np.geomspace(distances.max(), distances.max() / 10 / left, 10_000):
            asked = np.maximum(np.ceil(distances / epsilon), 1).astype(int)
            if asked.sum() > left:
                break
            depths = asked
        # Stages that are asked for a block more at the same epsilon: the most distant gets it.
        while depths.sum() < left:
            depths[np.argmax(distances / depths)] += 1
        return depths.tolist()


def even(blocks, stages):
    """Returns as many blocks in every stage, with those that are left in the first ones."""
    return [blocks // stages + (stage < blocks % stages) for stage in range(stages)]


def tables(frames):
    """Returns what is printed: a row per network, means over the seeds with their range."""
    rows = frames["results"].merge(regained(frames["results"]), how="left")
    found = {}
    for name, here in rows.groupby("network", sort=False):
        columns = {"blocks by stage": " / ".join(here.groupby("seed")["stages"].first())}
        for step in STEPS:
            errors = here.loc[here["step"] == step, "error"]
            columns[step] = ranged(errors, percent=True) if len(errors) else ""
        shares = here["regained"].dropna()
        columns["regained"] = ranged(shares, percent=True) if len(shares) else ""
        found[name] = columns
    return [pd.DataFrame.from_dict(found, orient="index").rename_axis("network")]


def regained(results):
    """Returns the share of the accuracy lost by removal that training brings back, by seed."""
    errors = results.pivot(index=["seed", "network"], columns="step", values="error")
    whole = errors[TRAINED].xs(DEEP, level="network")
    errors = errors.join(whole.rename("whole"), on="seed")
    lost = errors[REMOVED] - errors["whole"]
    # Where nothing was lost, there is nothing to be regained.
    shares = ((errors[REMOVED] - errors[TUNED]) / lost.where(lost > 0)).rename("regained")
    return shares.dropna().reset_index()


def drawn(frames):
    """Returns the figures by name."""
    results = frames["results"]
    left = min(sum(map(int, stages.split())) for stages in results["stages"])
    is_trained = results.groupby("network")["step"].transform(lambda steps: TRAINED in set(steps))
    pruned, trained = results[~is_trained], results[results["step"] == TRAINED]
    flat = pd.concat([trained.assign(step=step) for step in STEPS[1:]])
    plans = frames["plans"].assign(panel=[f"seed {seed}" for seed in frames["plans"]["seed"]])
    return {
        "depth_both_ways": panels(
            plans,
            "blocks_left",
            "error",
            "Test error without blocks, before any training",
            panel="panel",
            line="by",
            percent=True,
            below="blocks left",
            beside="test error",
        ),
        "depth_both_ways_errors": panels(
            pd.concat([pruned, flat]),
            "step",
            "error",
            f"Test error with {left} blocks; flat: trained as it is",
            line="network",
            percent=True,
            beside="test error",
        ),
    }


def main():
    arguments = parser_of(__doc__, SIZES, "runs/depth_both_ways").parse_args()
    size, out = SIZES[arguments.size], arguments.out / arguments.size
    if arguments.kept:
        frames = kept_frames(KEPT)
        out = IMAGES
    else:
        parts = []
        for seed in range(size.seeds):
            parts.append(Experiment(size, seed, out, arguments.data_dir).measured())
            keras.backend.clear_session()
        results, plans = (pd.concat(frames) for frames in zip(*parts, strict=True))
        frames = {"results": results, "plans": plans}
        write_frames(frames, out / "frames")
    show(tables(frames), drawn(frames), out)


if __name__ == "__main__":
    main()

"""Random numbers in place of what is measured on the networks of the catalogue."""

import itertools

import numpy as np
import pandas as pd

STAGES, BLOCKS, EPOCHS, TIMES = (1, 2, 3), range(6), range(4), 20
SPLITS = ("train", "test")
LOGGED = ("train", "validation")
GROUPS = ("all", "correct", "borderline")
SCORES = [
    f"{score}{of}"
    for score in ("accuracy", "cross_entropy", "entropy")
    for of in ("", "_step", "_change")
]

# The columns that tell the rows of a network apart, with their values, and those of the numbers;
# numbers of blocks have standard errors, too.
FRAMES = {
    "summary": (
        {},
        ["error", "train_error", "loss", "train_loss", "epochs", "seconds", "parameters"],
    ),
    "history": ({"epoch": EPOCHS}, ["error", "train_error", "loss", "train_loss"]),
    "block_metrics": (
        {"split": SPLITS, "stage": STAGES, "block": BLOCKS},
        ["l2_ratio", "cosine_loss", "readout_cosine_loss"],
    ),
    "drop_blocks": (
        {"split": ("test",), "stage": STAGES, "block": BLOCKS},
        ["error", "unperturbed_error", "agreement"],
    ),
    "first_order": (
        {"split": SPLITS, "stage": STAGES, "block": BLOCKS},
        ["l2_ratio", "rank_correlation", "ratio", "first_order", "loss_change"],
    ),
    "stage_sums": ({"split": SPLITS}, ["first_order_readout", "readout_change", "ratio"]),
    "readouts": ({"split": ("test",), "block": BLOCKS}, SCORES),
    "next_block": (
        {"split": SPLITS, "group": GROUPS, "block": range(1, 5)},
        ["put_right", "put_wrong", "images"],
    ),
    "by_epoch": (
        {"epoch": EPOCHS, "split": LOGGED, "stage": STAGES, "block": BLOCKS},
        [
            *("readout_error", "cosine_loss", "l2_ratio", "gradient_ratio", "state_l1"),
            "readout_cosine_loss",
        ],
    ),
    "borderline": (
        {
            "split": SPLITS,
            "along": ("blocks", "repetitions"),
            "scale": (1.0, 0.3),
            "block": range(5),
            "group": GROUPS,
        },
        SCORES,
    ),
    "repetitions": (
        {"split": SPLITS, "scale": (1.0, 0.3), "stage": STAGES, "repetition": range(TIMES + 1)},
        ["distance", "cosine_loss", "l2_ratio", "growth"],
    ),
    "first_signal": (
        {"split": LOGGED, "stage": STAGES, "block": BLOCKS},
        ["state_norm", "state_l1", "gradient_ratio", "shortcut_product", "sum_deviation"],
    ),
    "initial_signal": (
        {"split": LOGGED, "stage": STAGES, "block": BLOCKS},
        ["state_norm", "gradient_ratio"],
    ),
    "route_errors": (
        {
            "route": ("readout", "drop_blocks", "repeat_last_block"),
            "stage": STAGES,
            "block": BLOCKS,
        },
        ["error", "agreement", "cross_entropy", "distance"],
    ),
    "indices": (
        {"basis": ("labels", "agreement"), "stage": (*map(str, STAGES), "mean")},
        ["convergence_index", "recurrence_index", "divergence_index", "error", "chance"],
    ),
    "weights": (
        {},
        ["raw_parameters", "recurrent_parameters", "effective_parameters", "deviation"],
    ),
    "trajectories": (
        {},
        ["error", "early_error", "closer", "drop", "drift", "first_speed", "last_speed"],
    ),
    "drawn_trajectories": ({"kind": ("readout", "dropped", "repeated")}, ["z1", "z2"]),
    "perturbation": (
        {"split": ("test",), "stage": STAGES, "block": range(24)},
        ["perturbation", "scaled_perturbation"],
    ),
    "lines": (
        {"stage": STAGES, "classes": ("one class", "two classes")},
        ["length", "last_distance"],
    ),
    "path_lengths": ({"stage": STAGES}, ["path_length", "measured"]),
    "moves": ({}, ["deviation", "cosine"]),
}


def frames_of(networks, measures, seed=0):
    """Returns random frames of networks, by name.

    Args:
        networks: the networks of a paper.
        measures: names of the frames.
        seed: determines the numbers.
    """
    rng, found = np.random.default_rng(seed), {}
    for name in sorted(measures):
        keys, columns = FRAMES[name]
        rows = [
            (network.name, *values)
            for network in networks
            for values in itertools.product(*keys.values())
            # The networks of PI differ in their depth.
            if name != "perturbation" or values[-1] < network.labels["blocks"]
        ]
        frame = pd.DataFrame(rows, columns=["name", *keys])
        frame[columns] = rng.uniform(0.1, 0.9, (len(frame), len(columns)))
        frame = frame.assign(**{f"{column}_se": 0.01 for column in columns})
        found[name] = frame
    return found

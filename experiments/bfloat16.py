"""How far the numbers of the probes are from those in float32 if a network computes in bfloat16.

    python experiments/bfloat16.py

A ResNet-20 is trained for an epoch in float32; one in `mixed_bfloat16` gets its weights. Both are
probed on the same images. As a control, the float32 network is probed in batches of another size.
The table has, for every column, the median of its size over the blocks, and the largest difference.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import pandas as pd

import tfresidual as tfr
from tfresidual import datasets, networks, probes

PROBES = {
    "block_metrics": ("cosine_loss", "l2_ratio", "gradient_norm"),
    "drop_blocks": ("error", "cross_entropy"),
    "readout": ("error", "cross_entropy"),
    "first_order": ("first_order", "loss_change"),
    "signal_propagation": ("state_norm", "shortcut_share"),
}


def network(dtype):
    return networks.resnet(
        20, input_shape=(32, 32, 1), classifier_activation="sigmoid", dtype=dtype
    )


def frames(net, images):
    return {name: getattr(probes, name)(tfr.chain(net), images) for name in PROBES}


def main():
    keras.utils.set_random_seed(0)
    sizes = {"train_size": 4000, "test_size": 256, "data_dir": "data"}
    train, test = datasets.load("digitclutter", batch_size=64, **sizes)
    nets = {dtype: network(dtype) for dtype in ("float32", "mixed_bfloat16")}
    for net in nets.values():
        net.compile(keras.optimizers.Adam(3e-3), "binary_crossentropy")
    nets["float32"].fit(train, epochs=2, shuffle=False, verbose=2)
    nets["mixed_bfloat16"].set_weights(nets["float32"].get_weights())
    expected, rounded = (frames(net, test) for net in nets.values())
    again = frames(nets["float32"], test.unbatch().batch(48))
    rows = [
        {
            "probe": name,
            "column": column,
            "median": expected[name][column].abs().median(),
            "bfloat16": (rounded[name][column] - expected[name][column]).abs().max(),
            "float32 again": (again[name][column] - expected[name][column]).abs().max(),
        }
        for name, columns in PROBES.items()
        for column in columns
    ]
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.2g}".format))


if __name__ == "__main__":
    main()

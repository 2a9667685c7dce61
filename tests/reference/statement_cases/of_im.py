"""The statements of IM."""

from reference.statement_cases.book import Book, grid

IM = Book()
SEEDS, EPOCHS = (0, 1), range(6)
WRONG = 9.0
SHORTCUTS = {
    "identity": 0.3,
    "scaled 0.5, branch 1": 0.6,
    "scaled 0.5, branch 0.5": 0.5,
    "exclusive gate, bias 0": 0.4,
    "exclusive gate, bias -6": 0.35,
    "exclusive gate, bias -10": 0.36,
    "shortcut-only gate, bias 0": 0.45,
    "shortcut-only gate, bias -6": 0.305,
    "1x1 convolution": 0.55,
    "dropout": 0.57,
}


def errors(names, layers=(38,)):
    """A frame of the errors of networks, by name."""
    labels = {"network": names, "seed": SEEDS, "layers": layers}
    return {"summary": grid({"error": lambda row: names[row.network]}, labels)}


@IM.told(
    "IM-T1", 0.5, {"1x1 convolution": 0.29}, {"scaled 0.5, branch 0.5": 0.34}, {"identity": 0.46}
)
def _(**changes):
    return errors(SHORTCUTS | changes)


@IM.told(
    "IM-T1g",
    14.5,
    {"shortcut-only gate, bias 0": 0.32},
    {"identity": 0.29},
    {"exclusive gate, bias -6": 0.37},
    {"exclusive gate, bias 0": 0.365},
)
def _(**changes):
    found = SHORTCUTS | changes
    return errors({name: found[name] for name in found if name == "identity" or "gate" in name})


@IM.told("IM-3", 1, {"sign": -1}, {"sign": 0, "noise": 1})
def _(sign=1, noise=0):
    order = {name: i for i, name in enumerate(SHORTCUTS)}

    def early(row):
        # Asked for after a quarter of the epochs, and as little as it may be elsewhere.
        at = order[row.network]
        return sign * at + noise * (at * 7 % 10) if row.epoch == 1 else -WRONG * at

    def last(row):
        return order[row.network] if row.epoch == 5 else -order[row.network]

    values = {"train_error": early, "error": last}
    return {"history": grid(values, {"network": SHORTCUTS, "seed": SEEDS}, epoch=EPOCHS)}


LAYOUTS = {
    "original": 0.4,
    "BN after addition": 0.5,
    "ReLU before addition": 0.45,
    "ReLU-only pre-activation": 0.42,
    "full pre-activation": 0.3,
}


@IM.told(
    "IM-T2",
    -10,
    {"ReLU before addition": 0.2},
    {"original": 0.6},
    {"full pre-activation": 0.55},
)
def _(**changes):
    return errors(LAYOUTS | changes)


@IM.told("IM-1", 2, {"shallow": 4.0}, {"deep": 1.0})
def _(shallow=1.5, deep=3.0):
    def loss(row):
        factor = {38: shallow, 74: deep}[row.layers] if row.network == "original" else 1
        return factor * (1 + row.epoch)

    labels = {"layers": (38, 74), "network": ("original", "full pre-activation"), "seed": SEEDS}
    return {"history": grid({"train_loss": loss}, labels, epoch=EPOCHS)}


@IM.told("IM-E", 0.5, {"scale": 0.6}, {"identity": 0.9}, {"deviation": 0.01})
def _(scale=0.5, identity=1.0, deviation=0.0):
    def product(row):
        if row.stage == 1 or row.split != "train":
            return WRONG
        # What remains of the five blocks after the one that changes the shape.
        return (identity if row.network == "identity" else scale) ** (6 - row.block)

    def away(row):
        is_asked = row.network == "identity" and row.stage == 2 and row.split == "train"
        return deviation if is_asked else WRONG

    labels = {"network": ("identity", "scaled 0.5, branch 1"), "seed": SEEDS}
    values = {"shortcut_product": product, "sum_deviation": away}
    keys = {"split": ("train", "validation"), "stage": (1, 2), "block": range(6)}
    return {"first_signal": grid(values, labels, **keys)}

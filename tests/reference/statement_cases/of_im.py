"""The statements of IM."""

from reference.statement_cases.book import Book, grid

IM = Book()
SEEDS, EPOCHS = (0, 1), range(6)
WRONG = 9.0
SHORTCUTS = {
    "identity": 0.3,
    "scaled 0.5, branch 1": 0.6,
    "scaled 0.5, branch 0.5": 0.5,
    "exclusive gate, bias 0": 0.55,
    "exclusive gate, bias -6": 0.35,
    "exclusive gate, bias -10": 0.45,
    "shortcut-only gate, bias 0": 0.47,
    "shortcut-only gate, bias -6": 0.37,
    "1x1 convolution": 0.55,
    "dropout": 0.57,
}
# The lowest validation errors of exclusive gates.
VALIDATION = {"exclusive gate, bias 0": 0.5, "exclusive gate, bias -6": 0.2}


def errors(names, train=lambda row: WRONG, layers=(38,)):
    """Frames of the errors of networks, by name, and of validation errors over the epochs."""

    def validation(row):
        # Lowest in the fourth epoch; in the last one, the order is another.
        return VALIDATION.get(row.network, 0.4) if row.epoch == 3 else 1 - names[row.network] / 2

    labels = {"network": names, "seed": SEEDS, "layers": layers}
    values = {"error": lambda row: names[row.network], "train_error": train}
    return {
        "summary": grid(values, labels),
        "history": grid({"error": validation}, labels, epoch=EPOCHS),
    }


def shortcuts(**changes):
    return errors(SHORTCUTS | changes)


# Where the errors are those of all networks, differences are within noise.
for number, name in (
    ("a", "scaled 0.5, branch 1"),
    ("b", "scaled 0.5, branch 0.5"),
    ("c", "shortcut-only gate, bias -6"),
    ("d", "1x1 convolution"),
    ("e", "dropout"),
):
    effect = 100 * (SHORTCUTS[name] - SHORTCUTS["identity"])
    IM.told(f"IM-T1{number}", effect, {name: 0.25}, {"identity": 0.7}, otherwise=[{name: 0.303}])(
        shortcuts
    )


# The bias of -10, which is better on test images, is not chosen.
@IM.told(
    "IM-T1f",
    5,
    {"exclusive gate, bias -6": 0.2},
    {"identity": 0.4},
    otherwise=[{"exclusive gate, bias -6": 0.303}],
)
def _(**changes):
    return shortcuts(**{"exclusive gate, bias -10": 0.25} | changes)


@IM.told(
    "IM-T1g1",
    10,
    {"exclusive gate, bias -10": 0.35},
    {"exclusive gate, bias -6": 0.5},
    otherwise=[{"exclusive gate, bias -10": 0.38}],
)
def _(**changes):
    return shortcuts(**changes)


IM.told(
    "IM-T1g2",
    10,
    {"shortcut-only gate, bias 0": 0.35},
    {"shortcut-only gate, bias -6": 0.5},
    otherwise=[{"shortcut-only gate, bias 0": 0.4}],
)(shortcuts)


# Only of small errors is it known whether they are within a point.
@IM.told(
    "IM-T1g3",
    0.2,
    {"identity": 0.06},
    {"shortcut-only gate, bias -6": 0.05},
    otherwise=[{"identity": 0.3, "shortcut-only gate, bias -6": 0.3}],
)
def _(**changes):
    return shortcuts(**{"identity": 0.01, "shortcut-only gate, bias -6": 0.012} | changes)


@IM.told("IM-3", 20, {"more": -0.1}, otherwise=[{"more": 0.01}])
def _(more=0.2):
    """A shortcut that is not worse is not asked about."""

    def train(row):
        return 0.2 + {"identity": 0, "exclusive gate, bias -6": -0.2}.get(row.network, more)

    return errors(SHORTCUTS | {"exclusive gate, bias -6": 0.303}, train)


LAYOUTS = {
    "original": 0.4,
    "BN after addition": 0.5,
    "ReLU before addition": 0.45,
    "ReLU-only pre-activation": 0.42,
    "full pre-activation": 0.3,
}


def layouts(**changes):
    return errors(LAYOUTS | changes, layers=(38, 74))


IM.told(
    "IM-T2a",
    10,
    {"full pre-activation": 0.6},
    {"original": 0.2},
    otherwise=[{"full pre-activation": 0.395}],
)(layouts)
IM.told(
    "IM-T2b",
    5,
    {"BN after addition": 0.2},
    {"original": 0.8},
    otherwise=[{"BN after addition": 0.455}],
)(layouts)


@IM.told("IM-1", 2, {"shallow": 4.0}, {"deep": 1.0}, otherwise=[{"noise": 5}])
def _(shallow=1.5, deep=3.0, noise=0):
    def loss(row):
        factor = {38: shallow, 74: deep}[row.layers] if row.network == "original" else 1
        # In every other epoch, the shallow networks are as far apart as the deep ones, and more.
        is_noisy = row.network == "original" and row.layers == 38 and row.epoch % 2
        return factor * (1 + row.epoch) * (1 + noise * is_noisy)

    labels = {"layers": (38, 74), "network": ("original", "full pre-activation"), "seed": SEEDS}
    return {"history": grid({"train_loss": loss}, labels, epoch=EPOCHS)}


def first_signal(scale=0.5, identity=1.0, deviation=1e-7, noise=1e-9):
    """Frames of networks before training; what is not asked for is wrong."""

    def product(row):
        if row.stage == 1 or row.split != "train":
            return WRONG
        # What remains of the five blocks after the one that changes the shape.
        return (identity if row.network == "identity" else scale) ** (6 - row.block)

    def away(row):
        is_asked = row.network == "identity" and row.stage == 2 and row.split == "train"
        return (deviation if row.block else float("nan")) if is_asked else WRONG

    labels = {"network": ("identity", "scaled 0.5, branch 1"), "seed": SEEDS}
    values = {"shortcut_product": product, "sum_deviation": away}
    values |= {f"{name}_se": noise for name in values}
    keys = {"split": ("train", "validation"), "stage": (1, 2), "block": range(6)}
    return {"first_signal": grid(values, labels, **keys)}


NOISY = [{"noise": 0.005}]
IM.told("IM-E1", 1, {"identity": 0.9}, otherwise=NOISY)(first_signal)
IM.told("IM-E2", 0.5, {"scale": 0.6}, otherwise=NOISY)(first_signal)
IM.told("IM-E3", 1e-7, {"deviation": 0.01}, otherwise=NOISY)(first_signal)

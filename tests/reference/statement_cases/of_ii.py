"""The statements of II."""

from reference.statement_cases.book import Book, grid

II = Book()
SEEDS, SPLITS, LOGGED = (0, 1), ("train", "test"), ("train", "validation")
DRASTIC, MILD = ("single representation", "average pooling"), ("ResNet-110", "wide")
ALL = (*MILD, *DRASTIC)
SHARED = ("110 naive", "110 gamma 0.1", "110 statistics", "110 statistics, gamma 0.1", "110 UBN")
WRONG = 9.0


def networks(*names):
    return {"network": names, "seed": SEEDS}


def place(row):
    """The place of a block in a network of stages of three blocks."""
    return 3 * (row.stage - 1) + row.block


def per_block(frame, values, *names, splits=SPLITS, **keys):
    """A frame with two stages of three blocks."""
    keys = {"split": splits, "stage": (1, 2), "block": range(3)} | keys
    return {frame: grid(values, networks(*names), **keys)}


def on_test(function):
    """The values of a function on test images, and others on training images."""
    return lambda row: function(row) if row.split == "test" else WRONG


@II.told("II-2a", 2.0, {"first": 1.2}, {"slope": 0.01})
def _(first=1.8, slope=-0.1):
    def ratio(row):
        return first if place(row) == 0 else 0.9 + slope * (place(row) - 1)

    return per_block("block_metrics", {"l2_ratio": on_test(ratio)}, *DRASTIC)


@II.told("II-2b", 0.25, {"mild": 2.5})
def _(mild=0.5, drastic=2.0):
    def ratio(row):
        if row.network in DRASTIC:
            return drastic if place(row) == 0 else 0.1
        # The first block of these changes the shape.
        return (float("nan"), mild)[place(row)] if place(row) < 2 else WRONG

    return per_block("block_metrics", {"l2_ratio": on_test(ratio)}, *ALL)


@II.told("II-2c", 0.02, {"train": 1.1})
def _(train=1.02):
    values = {"l2_ratio": lambda row: (train if row.split == "train" else 1) / (1 + row.block)}
    return per_block("block_metrics", values, *ALL)


def dropped(first, later, *names):
    values = {
        "error": lambda row: first if place(row) == 0 else later,
        "unperturbed_error": 0.1,
    }
    return {"drop_blocks": grid(values, networks(*names), stage=(1, 2), block=range(3))}


@II.told("II-3a", 0.75, {"first": 0.4}, {"later": 0.3})
def _(first=0.7, later=0.14):
    return dropped(first, later, *DRASTIC)


@II.told("II-3b", 0.25, {"first": 0.6}, {"later": 0.6})
def _(first=0.3, later=0.2):
    return dropped(first, later, *MILD)


@II.told("II-4a", -1, {"start": 0.001}, {"start": -0.06, "slope": 0.01})
@II.told("II-C", -1, {"start": 0.001}, {"start": -0.06, "slope": 0.01})
def _(start=-0.01, slope=-0.01):
    cosine = on_test(lambda row: start + slope * place(row))
    return per_block("block_metrics", {"cosine_loss": cosine}, *ALL)


@II.told("II-4b", -0.05, {"deep": -0.04}, {"pooled": -0.04}, {"deep": 0.05, "others": 0.1})
def _(deep=-0.1, others=-0.05, pooled=-0.2):
    def cosine(row):
        lowest = {"ResNet-110": deep, "average pooling": pooled}.get(row.network, others)
        # Only the higher half of the blocks is asked for.
        return lowest + 0.01 * (5 - place(row)) if place(row) > 2 else -0.9

    return per_block("block_metrics", {"cosine_loss": on_test(cosine)}, *ALL)


@II.told("II-E", 0.8, {"correlation": 0.4}, {"ratio": 3.0}, {"ratio": -1.0})
def _(correlation=0.8, ratio=1.0):
    def where_small(value, elsewhere):
        return on_test(lambda row: value if row.stage == 2 else elsewhere)

    values = {
        "l2_ratio": where_small(0.1, 0.9),
        "rank_correlation": where_small(correlation, -0.5),
        "ratio": where_small(ratio, 10),
    }
    return per_block("first_order", values, *ALL)


@II.told("II-5", 1.0, {"gain": 0.004}, {"gain": 0, "last": 0.2}, {"bump": 0.07})
def _(gain=0.05, last=0, bump=0):
    def error(row):
        if row.stage == 1 or row.split == "train":
            return WRONG * row.block
        return 0.5 - gain * row.block + bump * (row.block == 2) - last * (row.block == 4)

    values = {"readout_error": error}
    return per_block("by_epoch", values, *ALL, splits=LOGGED, block=range(5), epoch=range(4))


def groups(values, **keys):
    keys = {"group": ("all", "correct", "borderline"), "along": ("blocks",), "scale": (1.0,)} | keys
    axes = {"split": SPLITS, "block": range(5)} | keys
    return {"borderline": grid(values, networks("ResNet-110"), **axes)}


@II.told("II-6a", 10, {"of_all": 0.02}, {"entropy": 0.1})
def _(of_all=0.005, entropy=-0.1):
    values = {
        "accuracy": on_test(
            lambda row: 0.3 + (0.05 if row.group == "borderline" else of_all) * row.block
        ),
        "entropy": on_test(
            lambda row: 1 + (entropy if row.group == "correct" else -0.1) * row.block
        ),
    }
    return groups(values)


@II.told("II-6b", 0.05, {"last": -0.05}, {"bump": 0.2})
def _(last=0.05, bump=0.0):
    def loss(row):
        if row.group != "all":
            return WRONG
        if row.split == "train":
            return 1 - 0.1 * row.block + bump * (row.block == 2)
        return 1 - 0.1 * min(row.block, 3) + last * (row.block == 4)

    return groups({"cross_entropy": loss})


def repeated(values):
    keys = {"split": SPLITS, "scale": (1.0, 0.3), "stage": (1, 2), "repetition": range(21)}
    return {"repetitions": grid(values, networks("ResNet-110"), **keys)}


@II.told("II-7a", 400, {"power": 1})
def _(power=2):
    def distance(row):
        is_asked = row.split == "test" and row.scale == 1 and row.stage == 2
        return row.repetition**power if is_asked else 1

    return repeated({"distance": distance})


@II.told("II-7b", 0.1, {"train": 0.1}, {"test": -0.1}, {"rise": -0.1})
def _(train=-0.1, test=0.1, rise=0.1):
    def share(row):
        """How far the repetitions are; the other ways are not asked for."""
        return row.block / 4 if row.along == "repetitions" and row.scale == 0.3 else -row.block

    values = {
        "accuracy": lambda row: 0.4 + (rise if row.group == "borderline" else 0) * share(row),
        "cross_entropy": lambda row: 1 + {"train": train, "test": test}[row.split] * share(row),
    }
    return groups(values, along=("blocks", "repetitions"), scale=(1.0, 0.3))


@II.told("II-7c", -0.01, {"scaled": 0.01}, {"second": 0.01})
def _(scaled=-0.02, second=-0.01):
    def cosine(row):
        if row.stage == 1 or row.repetition == 0:
            return WRONG
        return scaled if row.scale != 1 else second if row.repetition < 3 else 0.5

    return repeated({"cosine_loss": cosine})


def over_epochs(names, **columns):
    """A frame of errors that fall to those that are given, by network."""
    values = {
        column: lambda row, of=of: of[row.network] + 0.01 * (3 - row.epoch)
        for column, of in columns.items()
    }
    return {"history": grid(values, networks(*names), epoch=range(4))}


@II.told("II-8a", 5, {"naive": 0.3}, {"train": 0.2})
def _(naive=0.45, train=0.35):
    names = ("ResNet-38", "ResNet-110", "110 naive")
    error, train_error = (0.4, 0.35, naive), (0.1, 0.3, train)
    return over_epochs(
        names,
        error=dict(zip(names, error, strict=True)),
        train_error=dict(zip(names, train_error, strict=True)),
    )


@II.told("II-8b", 3, {"trained": 1.5}, {"initial": 1.5}, {"validation": 1.5})
def _(trained=6, initial=6, validation=6):
    def ratio(row):
        if row.stage == 1 or row.block > 0:
            return WRONG
        shared = min(
            trained if hasattr(row, "epoch") else initial,
            validation if row.split == "validation" else WRONG,
        )
        return shared if row.network == "110 naive" else 2

    values, names = {"gradient_ratio": ratio}, ("ResNet-110", "110 naive")
    first = per_block("first_signal", values, *names, splits=LOGGED)
    return first | per_block("by_epoch", values, *names, splits=LOGGED, epoch=range(3))


@II.told("II-8c", 3**5, {"growth": 1.5})
def _(growth=3):
    def norm(row):
        grows = row.network == "110 naive" and row.split == "train"
        return growth ** place(row) if grows else 1

    return per_block(
        "initial_signal", {"state_norm": norm}, "ResNet-110", "110 naive", splits=LOGGED
    )


@II.told("II-9a", 10, {"gamma": 0.55}, {"gamma": 0.38}, {"both": 0.42}, {"unshared": 0.37})
def _(gamma=0.45, statistics=0.4, both=0.35, unshared=0.3):
    errors = (0.5, gamma, statistics, both, unshared)
    return over_epochs(SHARED, error=dict(zip(SHARED, errors, strict=True)))


@II.told("II-9b", 5, {"gamma": 110}, {"statistics": 110}, {"both": 60}, {"unshared": 45})
def _(gamma=80, statistics=50, both=40, unshared=20):
    norms = dict(zip(SHARED, (100, gamma, statistics, both, unshared), strict=True))

    def norm(row):
        is_last = place(row) == 5 and row.epoch == 2 and row.split == "validation"
        return norms[row.network] if is_last else WRONG

    return per_block("by_epoch", {"state_l1": norm}, *SHARED, splits=LOGGED, epoch=range(3))


@II.told("II-T1", 10, {"110 UBN": 0.45}, {"ResNet-56": 0.05}, {"146 UBN": 0.2}, {"182 UBN": 0.2})
def _(**errors):
    errors = {
        "ResNet-110": 0.1,
        "ResNet-56": 0.2,
        "110 UBN": 0.3,
        "ResNet-38": 0.4,
        "ResNet-32": 0.5,
        "146 UBN": 0.3,
        "182 UBN": 0.35,
    } | errors
    return {"summary": grid({"error": lambda row: errors[row.network]}, networks(*errors))}


@II.told("II-18", 1, *({"other": name} for name in ("cosine_loss", "readout_error", "l2_ratio")))
def _(other=None):
    def value(metric):
        def of(row):
            if row.stage == 1 or row.split == "train":
                return WRONG * (row.network == "110 UBN") - row.block
            size = 2 ** (3 * row.epoch + row.block)
            return -size if metric == other and row.network == "110 UBN" else size

        return of

    values = {metric: value(metric) for metric in ("cosine_loss", "readout_error", "l2_ratio")}
    names = ("ResNet-110", "110 naive", "110 UBN")
    return per_block("by_epoch", values, *names, splits=LOGGED, epoch=range(3))

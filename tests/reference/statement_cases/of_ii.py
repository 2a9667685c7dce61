"""The statements of II."""

from reference.statement_cases.book import Book, grid

II = Book()
SEEDS, SPLITS, LOGGED = (0, 1), ("train", "test"), ("train", "validation")
DRASTIC, MILD = ("single representation", "average pooling"), ("ResNet-110", "wide")
ALL = (*MILD, *DRASTIC)
WITHOUT_WIDE = ("ResNet-110", *DRASTIC)
SHARED = ("110 naive", "110 gamma 0.1", "110 statistics", "110 statistics, gamma 0.1", "110 UBN")
WRONG, NOISE = 9.0, 1e-4


def networks(*names, seeds=SEEDS):
    return {"network": names, "seed": seeds}


def noisy(values, noise=NOISE):
    """The values of columns, and columns of their standard errors."""
    return values | {f"{name}_se": noise for name in values}


def place(row):
    """The place of a block in a network of two stages of three blocks."""
    return 3 * (row.stage - 1) + row.block


def per_block(frame, values, *names, splits=SPLITS, noise=NOISE, **keys):
    """A frame with two stages of three blocks."""
    keys = {"split": splits, "stage": (1, 2), "block": range(3)} | keys
    return {frame: grid(noisy(values, noise), networks(*names), **keys)}


def on_test(function):
    """The values of a function on test images, and others on training images."""
    return lambda row: function(row) if row.split == "test" else WRONG


def summary(*names, seeds=SEEDS, **columns):
    """A frame of numbers of networks, each a number or a dict by name."""
    values = {
        column: (lambda row, of=of: of[row.network]) if isinstance(of, dict) else of
        for column, of in columns.items()
    }
    return {"summary": grid(values, networks(*names, seeds=seeds))}


FITTED, UNFITTED = {"train_loss": 0.01}, {"train_loss": 0.3}


@II.told("II-2a1", 3.0, {"first": 0.9}, otherwise=[{"noise": 0.5}])
def _(first=1.8, noise=NOISE):
    def ratio(row):
        return first if place(row) == 0 else 0.6

    return per_block("block_metrics", {"l2_ratio": on_test(ratio)}, *DRASTIC, noise=noise)


@II.told("II-2a2", -1.0, {"slope": 0.1})
def _(slope=-0.1):
    values = {"l2_ratio": on_test(lambda row: 0.9 + slope * place(row))}
    return per_block("block_metrics", values, *DRASTIC)


@II.told("II-2b", 0.25, {"mild": 2.5}, otherwise=[{"names": WITHOUT_WIDE}])
def _(mild=0.5, drastic=2.0, names=ALL):
    def ratio(row):
        if row.network in DRASTIC:
            return drastic if place(row) == 0 else 0.1
        # The first block of these changes the shape.
        return (float("nan"), mild)[place(row)] if place(row) < 2 else 0.1

    return per_block("block_metrics", {"l2_ratio": on_test(ratio)}, *names)


@II.told("II-2c", 0.02, {"train": 1.1})
def _(train=1.02):
    values = {"l2_ratio": lambda row: (train if row.split == "train" else 1) / (1 + row.block)}
    return per_block("block_metrics", values, *ALL, noise=1e-9)


def dropped(error, *names):
    values = {"error": error, "unperturbed_error": 0.1, "agreement": 0.5}
    return {
        "drop_blocks": grid(values, networks(*names), split=("test",), stage=(1, 2), block=range(3))
    }


@II.told("II-3a1", 0.75, {"first": 0.2}, {"later": 0.9})
def _(first=0.7, later=0.14):
    return dropped(lambda row: first if place(row) < 3 else later, *DRASTIC)


@II.told("II-3a2", 0.05, {"upper": 0.4})
def _(upper=0.14):
    return dropped(lambda row: upper if place(row) > 2 else 0.9, *DRASTIC)


@II.told("II-3b", 0.25, {"costliest": 0.6})
def _(costliest=0.3):
    return dropped(lambda row: costliest if place(row) == 3 else 0.2, *MILD)


def negative(frame, column, cosine, names, **keys):
    return per_block(frame, {column: cosine}, *names, **keys)


@II.told("II-4a1", -0.01, {"start": 0.1}, {"highest": 0.01}, otherwise=[{"start": 0, "slope": 0}])
@II.told("II-C", -0.01, {"start": 0.1})
def _(start=-0.01, slope=-0.01, highest=None):
    def cosine(row):
        is_highest = highest is not None and place(row) == 2
        return highest if is_highest else start + slope * place(row)

    return negative("block_metrics", "cosine_loss", on_test(cosine), ALL)


@II.told("II-4a2", -0.04, {"slope": 0.01})
def _(slope=-0.01):
    cosine = on_test(lambda row: slope * place(row))
    return negative("block_metrics", "cosine_loss", cosine, ALL)


@II.told("II-4b", -0.05, {"deep": -0.04}, {"pooled": -0.04})
def _(deep=-0.1, others=-0.05, pooled=-0.2):
    def cosine(row):
        lowest = {"ResNet-110": deep, "average pooling": pooled}.get(row.network, others)
        # Only the higher half of the blocks is asked for.
        return lowest + 0.01 * (5 - place(row)) if place(row) > 2 else -0.9

    return negative("block_metrics", "cosine_loss", on_test(cosine), ALL)


@II.told("II-E1", 0.9, {"ratio": 0.3}, {"ratio": -1.0})
def _(ratio=0.9):
    values = noisy({"ratio": on_test(lambda row: ratio)})
    return {"stage_sums": grid(values, networks(*ALL), split=SPLITS)}


def small_steps(**values):
    """First-order terms of blocks with small steps in the last stage alone."""
    columns = {
        name: on_test(lambda row, of=of: of if row.stage == 2 else WRONG)
        for name, of in ({"l2_ratio": 0.1} | values).items()
    }
    return per_block("first_order", columns, *ALL)


@II.told("II-E2", 0.8, {"correlation": 0.4})
def _(correlation=0.8):
    return small_steps(rank_correlation=correlation)


@II.told("II-E3", 1.0, {"term": 3.0}, {"term": -1.0}, otherwise=[{"term": 0.5}])
def _(term=1.0):
    return small_steps(first_order=term, loss_change=1.0)


def along_blocks(names=("ResNet-110",), frame="readouts", **values):
    """A frame of scores after each of five blocks, by functions of a row, and their steps."""
    keys = {"split": SPLITS} if frame == "borderline" else {"split": ("test",)}
    if frame == "borderline":
        keys |= {"group": ("all", "correct", "borderline"), "along": ("blocks", "repetitions")}
        keys |= {"scale": (1.0, 0.1, 0.3)}
    columns = {}
    for name, of in values.items():
        columns[name] = of

        def step(row, of=of):
            before = type(row)(**(vars(row) | {"block": row.block - 1}))
            return of(row) - of(before) if row.block else float("nan")

        def change(row, of=of):
            return of(row) - of(type(row)(**(vars(row) | {"block": 0})))

        columns |= noisy({f"{name}_step": step, f"{name}_change": change})
    found = grid(columns, networks(*names), **keys, block=range(5))
    if frame == "borderline":
        # The blocks as they are trained have no scale.
        found = found[(found["along"] == "repetitions") | (found["scale"] == 1)]
    return {frame: found}


@II.told("II-5", 0.25, {"gain": 0.004}, {"jump": 0.5}, {"bump": -0.2})
def _(gain=0.05, jump=0.0, bump=0.0):
    def accuracy(row):
        return 0.5 + gain * row.block + jump * (row.block > 1) + bump * (row.block == 3)

    return along_blocks(ALL, accuracy=accuracy)


def next_blocks(borderline=0.18, everything=0.01, images=100):
    def put_right(row):
        of = borderline if row.group == "borderline" else everything
        return on_test(lambda row: of)(row)

    values = {
        "put_right": put_right,
        "put_wrong": 0.01,
        "images": lambda row: images if row.group == "borderline" else 2000,
    }
    keys = {"split": SPLITS, "group": ("all", "correct", "borderline"), "block": range(1, 5)}
    return {"next_block": grid(values, networks("ResNet-110"), **keys)}


II.told("II-6a1", 68, {"everything": 0.15}, undecidable=[{"images": 600}])(next_blocks)


@II.told("II-6a2", -0.4, {"correct": 0.1}, undecidable=[{"images": 600}])
def _(correct=-0.1, images=100):
    def entropy(row):
        return 1 + (correct if row.group == "correct" else -0.1) * row.block

    return along_blocks(frame="borderline", entropy=entropy) | next_blocks(images=images)


def losses(column, group, split, curve, of, train_loss, chosen=0.3):
    """Scores that change by `of` with each block, and frames of how well the network fits."""

    def value(row):
        # The scale with the lower training loss at the end is the one that is asked for.
        is_other = row.along == "repetitions" and row.scale != chosen
        asked = row.group == group and row.split == split and row.along == curve
        return (of if asked else 0.0) * row.block + 5.0 * is_other * (row.block > 0)

    columns = {"cross_entropy": lambda row: 0.0} | {column: value}
    if column != "cross_entropy":
        columns["cross_entropy"] = lambda row: float(row.scale != chosen)
    return along_blocks(frame="borderline", **columns) | summary(
        "ResNet-110", train_loss=train_loss
    )


@II.told("II-6b1", -0.1, {"of": 0.1}, undecidable=[UNFITTED])
def _(of=-0.1, train_loss=0.01):
    return losses("cross_entropy", "all", "train", "blocks", of, train_loss)


@II.told("II-6b2", 0.1, {"of": -0.1}, undecidable=[UNFITTED])
def _(of=0.1, train_loss=0.01):
    return losses("cross_entropy", "all", "test", "blocks", of, train_loss)


@II.told("II-7b1", -0.4, {"of": 0.1}, undecidable=[UNFITTED])
def _(of=-0.1, train_loss=0.01):
    return losses("cross_entropy", "all", "train", "repetitions", of, train_loss)


@II.told("II-7b2", 0.4, {"of": -0.1}, undecidable=[UNFITTED])
def _(of=0.1, train_loss=0.01):
    return losses("cross_entropy", "all", "test", "repetitions", of, train_loss)


@II.told("II-7b3", 0.4, {"of": -0.1}, undecidable=[UNFITTED])
def _(of=0.1, train_loss=0.01):
    return losses("accuracy", "borderline", "test", "repetitions", of, train_loss)


def repeated(cosine=0.0, growth=1.0, train_loss=0.01):
    values = noisy({"cosine_loss": cosine, "growth": growth})
    keys = {"split": SPLITS, "stage": (1, 2), "scale": (1.0, 0.3), "repetition": range(21)}
    frames = {"repetitions": grid(values, networks("ResNet-110"), **keys)}
    chosen = losses("cross_entropy", "all", "train", "repetitions", -0.1, train_loss)
    return frames | chosen


@II.told("II-7a", 100, {"growth": 15})
def _(growth=100):
    def of(row):
        return growth if (row.stage, row.split, row.scale) == (2, "test", 1) else 1

    return repeated(growth=of)


@II.told("II-7c1", -0.02, {"second": 0.01}, undecidable=[UNFITTED])
def _(second=-0.02, **fit):
    def cosine(row):
        asked = row.stage == 2 and row.scale == 1 and 0 < row.repetition < 3
        return (-0.03 if row.repetition == 1 else second) if asked else WRONG

    return repeated(cosine, **fit)


@II.told("II-7c2", -0.02, {"last": 0.01}, undecidable=[UNFITTED])
def _(last=-0.02, **fit):
    def cosine(row):
        asked = row.stage == 2 and row.scale == 0.3 and row.repetition > 0
        return (last if row.repetition == 20 else -0.03) if asked else WRONG

    return repeated(cosine, **fit)


@II.told("II-8a1", 10, {"naive": 0.2})
def _(naive=0.4):
    return summary("ResNet-110", "110 naive", train_error={"ResNet-110": 0.3, "110 naive": naive})


@II.told("II-8a2", 10, {"naive": 0.2})
def _(naive=0.4):
    return summary("ResNet-38", "110 naive", error={"ResNet-38": 0.3, "110 naive": naive})


@II.told("II-8b", 3, {"trained": 1.0}, {"initial": 1.0}, otherwise=[{"validation": 0.5}])
def _(trained=6, initial=6, validation=None):
    def ratio(row):
        if row.stage == 1 or row.block > 0:
            return WRONG
        shared = trained if hasattr(row, "epoch") else initial
        if validation is not None and row.split == "validation":
            shared = validation
        return shared if row.network == "110 naive" else 2

    values, names = {"gradient_ratio": ratio}, ("ResNet-110", "110 naive")
    first = per_block("first_signal", values, *names, splits=LOGGED)
    return first | per_block("by_epoch", values, *names, splits=LOGGED, epoch=range(3))


def grown(frame, growth):
    def norm(row):
        grows = row.network == "110 naive" and row.split == "train"
        return float(growth) ** place(row) if grows else 1.0

    return per_block(frame, {"state_norm": norm}, "ResNet-110", "110 naive", splits=LOGGED)


@II.told("II-8c1", 3**5, {"growth": 1.5})
def _(growth=3):
    return grown("initial_signal", growth)


@II.told("II-8c2", 3**5, {"growth": 1.5})
def _(growth=3):
    return grown("first_signal", growth)


def of_parts(seeds=(0, 1, 2), errors=(0.5, 0.45, 0.4, 0.35, 0.3), noise=0.001):
    """Errors of the strategies of sharing, which fall to these over the epochs."""
    found = dict(zip(SHARED, errors, strict=True))
    values = {"error": lambda row: found[row.network] + 0.01 * (3 - row.epoch) + noise * row.seed}
    named = networks(*SHARED, seeds=seeds)
    return {"history": grid(values, named, epoch=range(4))} | summary(*SHARED, seeds=seeds)


for _id, _effect, _errors in (
    ("II-9a1", 5, (0.5, 0.55, 0.4, 0.35, 0.3)),
    ("II-9a2", 10, (0.5, 0.45, 0.6, 0.35, 0.3)),
    ("II-9a3", 5, (0.5, 0.45, 0.4, 0.35, 0.4)),
    ("II-9a4", 5, (0.5, 0.3, 0.4, 0.35, 0.3)),
):
    II.told(_id, _effect, {"errors": _errors}, undecidable=[{"seeds": (0, 1)}])(of_parts)


def first_norms(norms):
    found = dict(zip(SHARED[:-1], norms, strict=True))

    def norm(row):
        return found[row.network] if place(row) == 5 and row.split == "train" else WRONG

    return per_block("first_signal", {"state_l1": norm}, *SHARED[:-1], splits=LOGGED)


@II.told("II-9b1", 2, {"norms": (100, 150, 50, 20)})
@II.told("II-9b2", 2, {"norms": (100, 50, 150, 25)})
def _(norms=(100, 50, 50, 25)):
    return first_norms(norms)


def of_table(seeds=range(4), **errors):
    errors = {
        "ResNet-110": 0.1,
        "ResNet-56": 0.2,
        "110 UBN": 0.3,
        "ResNet-38": 0.4,
        "ResNet-32": 0.5,
        "146 UBN": 0.4,
        "182 UBN": 0.45,
    } | errors
    return summary(*errors, seeds=seeds, error=errors)


for _id, _change in (
    ("II-T1a", {"ResNet-56": 0.05}),
    ("II-T1b", {"110 UBN": 0.45}),
    ("II-T1c", {"182 UBN": 0.2}),
):
    II.told(_id, 10, _change, undecidable=[{"seeds": range(3)}])(of_table)


def trends(metric):
    """Values that grow with epoch and block; in shared networks as in the unshared one."""

    def of(slope=1):
        def value(row):
            if row.stage == 1 or row.split == "train":
                return WRONG * (row.network == "110 UBN") - row.block
            shared = row.network != "ResNet-110"
            return (slope if shared else 1) * 2 ** (3 * row.epoch + row.block)

        names = ("ResNet-110", "110 naive", "110 UBN")
        return per_block("by_epoch", {metric: value}, *names, splits=LOGGED, epoch=range(3))

    return of


for _id, _metric in (
    ("II-18a", "cosine_loss"),
    ("II-18b", "readout_error"),
    ("II-18c", "l2_ratio"),
):
    II.told(_id, 1, {"slope": -1})(trends(_metric))


@II.told("II-13", -0.01, {"highest": 0.02})
def _(highest=-0.01):
    def cosine(row):
        return WRONG if row.stage == 1 else highest if row.block == 1 else -0.05

    return negative("block_metrics", "readout_cosine_loss", on_test(cosine), ALL)


@II.told("II-14", 1, {"slope": -1}, otherwise=[{"odd": -1}])
def _(slope=1, odd=1):
    def ratio(row):
        if row.stage == 1 or row.split == "train":
            return WRONG - row.epoch
        return slope * (odd if row.block % 2 else 1) * (1 + row.epoch)

    values = {"l2_ratio": ratio}
    return per_block("by_epoch", values, *ALL, splits=LOGGED, epoch=range(4))


@II.told("II-A1a", 0, {"deviation": 0.1})
@II.told("II-A1b", 0, {"deviation": 0.1})
def _(deviation=0.0):
    labels = {"layer": ("dense",), "seed": (0,)}
    return {"moves": grid({"deviation": deviation}, labels)}

"""The statements of IC."""

import math

from reference.statement_cases.book import Book, grid

IC = Book()
SEEDS, STAGES, WIDTHS = (0, 1), (1, 2, 3), (4, 8)
COUPLINGS = {
    "ordinary": 0.0,
    "coupling 0": 0.0,
    "coupling 0.5": 0.5,
    "coupling 0.9": 0.9,
    "coupling 1": 1.0,
}
INDICES = ("convergence", "recurrence", "divergence")
WRONG = 9.0


@IC.told("IC-1", 1.1, {"speed": 1.4}, {"closer": 0.7}, {"plain": 0.8}, {"drop": 0.2})
def _(speed=1.2, closer=0.9, plain=0.5, drop=0.05):
    def of(feed_forward, recurrent, resnet):
        found = {"feed-forward": feed_forward, "recurrent ResNet": recurrent, "ResNet": resnet}
        return lambda row: found[row.network]

    values = {
        "first_speed": of(WRONG, 1.0, speed),
        "closer": of(plain, 1.0, closer),
        "drop": of(1.0, drop, 0.01),
    }
    labels = {"network": ("feed-forward", "recurrent ResNet", "ResNet"), "seed": SEEDS}
    return {"trajectories": grid(values, labels)}


def routes(readout=0.1, dropped=0.1, indices=None, whole=0.1):
    """Frames of the errors on routes and the indices of the stages, functions of a row."""

    def error(row):
        value = {"readout": readout, "drop_blocks": dropped}.get(row.route, WRONG)
        return value(row) if callable(value) else value

    def index(name):
        value = (indices or {}).get(name, 1.0)
        asked = value if callable(value) else lambda row: value
        return lambda row: asked(row) if row.stage != "mean" and row.basis == "labels" else -WRONG

    labels = {"seed": SEEDS}
    kinds = ("readout", "drop_blocks", "repeat_last_block")
    keys = {"basis": ("labels", "agreement"), "stage": (*map(str, STAGES), "mean")}
    columns = {f"{name}_index": index(name) for name in INDICES}
    return {
        "route_errors": grid({"error": error}, labels, route=kinds, stage=STAGES, block=range(5)),
        "indices": grid(columns | {"error": whole}, labels, **keys),
    }


@IC.told("IC-2a", 0.3, {"jump": 0.24}, {"bump": 0.15}, {"third": 0.03})
def _(jump=0.12, bump=0.0, third=0.01):
    def error(row):
        if row.stage == 2:
            return 0.5 - 0.1 * row.block
        if row.stage == 3:
            # Final after its first block, to a point.
            return 0.1 + third * (row.block == 0)
        # Block 2 takes `jump` of a way of 0.4, the other three equal parts of what is left.
        way = (0.4 - jump) / 3 * (row.block - (row.block > 1)) + jump * (row.block > 1)
        return 0.5 - way + bump * (row.block == 3)

    return routes(readout=error)


@IC.told("IC-2b", 0.95, {"lowest": 0.8}, {"highest": 1.2}, {"cost": 0.06})
def _(lowest=0.95, highest=1.0, cost=0.04):
    def error(row):
        if row.stage == 1 and row.block == 0:
            return WRONG
        return 0.1 + cost * (row.stage == 1 and row.block == 1)

    def index(row):
        return {"1": lowest, "2": highest}.get(row.stage, 1.0)

    return routes(dropped=error, indices={"recurrence": index})


@IC.told("IC-2c", 0.3, {"first": 0.1}, {"first": 0.6})
def _(first=0.3):
    return routes(indices={"divergence": lambda row: first if row.stage == "1" else 0.5})


def networks(*, data=("CIFAR-10",), bounds=("standard",), variation=("standard",), **more):
    """Labels of networks of all couplings."""
    return {
        "data": data,
        "bounds": bounds,
        "variation": variation,
        "setting": tuple(COUPLINGS),
        "width": WIDTHS,
        "seed": SEEDS,
    } | more


def summary(error, **labels):
    """A frame of the errors of networks, a number or a function of a row."""
    return {"summary": grid({"error": error}, networks(**labels))}


def with_indices(error, indices, basis=("labels",), **labels):
    """Frames of the errors of networks and of the means of their indices, functions of a row."""
    columns = {
        f"{name}_index": lambda row, of=of: of(row) if row.stage == "mean" else -WRONG
        for name, of in indices.items()
    }
    found = networks(**labels)
    keys = {"basis": basis, "stage": ("1", "mean")}
    return summary(error, **labels) | {"indices": grid(columns, found, **keys)}


def coupling(row):
    return COUPLINGS[row.setting]


@IC.told(
    "IC-3a",
    0.27,
    {"rise": -0.5},
    {"fall": -0.5},
    {"wider": -0.1},
    {"wider_falls": -0.1},
    {"last": 1.0},
    {"recurrence": 1.2},
)
def _(rise=0.2, fall=0.2, wider=0.2, wider_falls=0.1, last=0.1, recurrence=1.05):
    def convergence(row):
        at = coupling(row)
        return last if at == 1 else 0.5 + (rise + wider * (row.width == 8)) * at

    indices = {
        "convergence": convergence,
        "divergence": lambda row: 0.5 - (fall + wider_falls * (row.width == 8)) * coupling(row),
        "recurrence": lambda row: recurrence if row.setting == "coupling 0.5" else 1.0,
    }
    return with_indices(0.3, indices)


@IC.told("IC-3b", 20, {"at_half": 0.42}, {"at_most": 0.5}, {"at_half": 0.2}, {"last": 0.3})
def _(at_half=0.35, at_most=0.4, last=0.5, start=0.3):
    def error(row):
        if row.width == 4:
            return {0.5: 0.4, 0.9: 0.45, 1.0: last}.get(coupling(row), start)
        return {0.5: at_half, 0.9: at_most, 1.0: last}.get(coupling(row), start)

    frame = summary(error, data=("CIFAR-10", "Digitclutter-5"))["summary"]
    # Digitclutter has one width.
    return {"summary": frame[(frame["data"] == "CIFAR-10") | (frame["width"] == 8)]}


# Ten places: the wider networks have the lower errors and the higher convergence index. Within a
# width, the ranks of the five couplings have no correlation.
UNRELATED = dict(zip(COUPLINGS, (1, 4, 2, 0, 3), strict=True))


@IC.told("IC-3c", -62.5 / 82.5, {"wide": -1}, {"within": 1}, {"divergence": 1})
def _(wide=1, within=0, divergence=-1):
    order = {name: i for i, name in enumerate(COUPLINGS)}

    def index(row):
        return 5 * wide * (row.width == 8) + (order if within else UNRELATED)[row.setting]

    indices = {
        "convergence": index,
        "divergence": lambda row: divergence * index(row),
        "recurrence": lambda row: 1.0,
    }
    return with_indices(lambda row: order[row.setting] - 5 * (row.width == 8), indices)


@IC.told("IC-4a", 0.05, {"divergence": 0.2}, {"convergence": 0.6}, {"recurrence": 0.8})
def _(divergence=0.05, convergence=0.8, recurrence=1.0):
    at_most = {"divergence": divergence, "convergence": convergence, "recurrence": recurrence}
    usual = {"divergence": 0.01, "convergence": 0.9, "recurrence": 1.0}
    indices = {
        name: lambda row, name=name: (at_most if row.setting == "coupling 0.9" else usual)[name]
        for name in INDICES
    }
    return with_indices(0.3, indices, bounds=("improperly convergent",))


@IC.told("IC-4b", 5, {"at_one": -0.02}, {"widths": (8, 32)})
def _(at_one=0.05, widths=(4, 8, 16)):
    def error(row):
        # The exception that the paper prints is no exception at another width.
        rise = {16: -0.1, 32: -0.1}.get(row.width, at_one) if row.setting == "coupling 1" else 0.05
        return 0.3 + 0.1 * coupling(row) + rise * (row.bounds != "standard")

    return summary(error, bounds=("standard", "improperly convergent"), width=widths)


@IC.told("IC-5", 1, {"train": -1}, {"validation": -1})
def _(train=1, validation=1):
    values = {
        "train_error": lambda row: 0.5 + 0.1 * train * row.coupling - 0.05 * row.epoch,
        "error": lambda row: 0.5 + 0.1 * validation * row.coupling - 0.05 * row.epoch,
    }
    labels = {"coupling": (0.0, 0.5, 0.9, 1.0), "seed": SEEDS}
    return {"history": grid(values, labels, epoch=range(4))}


@IC.told("IC-6", -0.05, {"convergence": -1}, {"divergence": -1}, {"divergence": 0}, {"level": 0.8})
def _(convergence=1, divergence=1, level=0.95):
    """On agreement, convergence and divergence at coupling 0.9 are lower by 0.05."""

    def index(slope):
        def of(row):
            if row.basis == "labels":
                return 0.5 + 0.1 * coupling(row) / 0.9
            return 0.3 + 0.05 * slope * coupling(row) / 0.9

        return of

    indices = {
        "convergence": index(convergence),
        "divergence": index(divergence),
        "recurrence": lambda row: 1.0 if row.basis == "labels" else level,
    }
    return with_indices(0.3, indices, basis=("labels", "agreement"))


@IC.told(
    "IC-7",
    0.1,
    {"last": 0.01},
    {"half": 0.5},
    {"least": 200},
    {"most": 900},
    {"sign": -1},
    {"alike": 0.0},
)
def _(last=0.0, half=0.2, least=100, most=1000, sign=1, alike=1.0):
    found = {"coupling 0": 0.4, "coupling 0.5": half, "coupling 0.9": 0.04, "coupling 1": last}

    def effective(row):
        share = 1 - coupling(row)
        return 100 + 900 * (share if sign > 0 else coupling(row))

    columns = {
        "raw_parameters": most,
        "recurrent_parameters": least,
        "effective_parameters": effective,
        "deviation": lambda row: found.get(row.setting, WRONG),
    }
    labels = networks()
    frame = grid(columns, labels).drop(columns=list(labels))

    def error(row):
        # Where networks of one count do alike, the error depends on the count.
        return 0.3 - 0.02 * (alike * math.log(effective(row)) + (1 - alike) * (row.width == 8))

    def odd(row):
        # Or else on whether blocks began equal, which the count does not tell.
        return error(row) + (1 - alike) * 0.1 * (row.setting == "coupling 0")

    return summary(odd) | {"weights": frame}


VARIATIONS = ("standard", "gamma 0.1", "triangular", "late", "late, gamma 0.1")


def varied(gain):
    """A frame in which a variation lowers the error by `gain(variation, setting)`."""
    plain = dict(zip(COUPLINGS, (0.3, 0.31, 0.4, 0.45, 0.5), strict=True))
    return summary(
        lambda row: plain[row.setting] - gain(row.variation, row.setting), variation=VARIATIONS
    )


@IC.told("IC-8a", 2, {"gain": -0.01}, {"others": 0.01})
def _(gain=0.02, others=-0.01):
    def of(variation, setting):
        return (variation == "gamma 0.1") * (gain if setting == "coupling 0.9" else others)

    return varied(of)


@IC.told("IC-8b", 2, {"gain": -0.01}, {"gain": 0.2})
def _(gain=0.02):
    def of(variation, setting):
        return (variation == "triangular") * (gain if setting == "coupling 0.5" else 0.05)

    return varied(of)


@IC.told("IC-8c", 2, {"late": -0.01}, {"late_gamma": -0.01}, {"late": 0.2})
def _(late=0.02, late_gamma=0.03):
    def of(variation, setting):
        gain = {"late": late, "late, gamma 0.1": late_gamma}.get(variation, 0)
        return gain + 0.01 * ("late" in variation and setting == "coupling 0.9")

    return varied(of)


# Gamma 0.1 rises by 0.9, from coupling 0 on, and the other three by 0.4, from 0.5 on.
@IC.told("IC-10", (0.9 + 3 * 0.4) / 4, {"rise": -6.0}, {"fall": -6.0}, {"odd": VARIATIONS[2:]})
def _(rise=1.0, fall=1.0, odd=("late",)):
    def index(sign, slope):
        def of(row):
            if row.variation == "standard":
                return WRONG
            if row.variation != "gamma 0.1" and row.setting in ("ordinary", "coupling 0"):
                # Not trained.
                return math.nan
            return sign * (slope if row.variation == "late" else 1.0) * coupling(row)

        return of

    indices = {
        "convergence": index(1, rise),
        "divergence": index(-1, fall),
        "recurrence": lambda row: 0.8 if row.variation in odd else 1.0,
    }
    return with_indices(0.3, indices, variation=VARIATIONS)


@IC.told("IC-11", 2, {"more": -0.02}, {"more": 0.04}, {"divergence": 0.2})
def _(more=0.02, divergence=0.05):
    def error(row):
        # Some couplings by more, some by less.
        return 0.3 + (more + 0.01 * (coupling(row) - 0.48)) * (row.anchor == "input")

    indices = {
        "convergence": lambda row: 0.8,
        "divergence": lambda row: divergence if row.setting == "coupling 0.9" else 0.01,
        "recurrence": lambda row: 1.0,
    }
    return with_indices(error, indices, anchor=("previous", "input"))


OTHER_DATA = ("Digitclutter-5", "Digitclutter-3", "Digitclutter-4, few", "CIFAR-10, few", "MNIST")


@IC.told("IC-13", 5, {"best": 0.35})
def _(best=0.45):
    def error(row):
        return {0.0: 0.4, 0.5: 0.5, 0.9: best}.get(coupling(row), 0.6)

    return summary(error, data=OTHER_DATA)

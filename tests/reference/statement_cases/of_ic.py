"""The statements of IC."""

import functools
import math

from reference.statement_cases.book import Book, grid

IC = Book()
SEEDS, WIDTHS = (0, 1), (4, 8)
COUPLINGS = {
    "ordinary": 0.0,
    "coupling 0": 0.0,
    "coupling 0.5": 0.5,
    "coupling 0.9": 0.9,
    "coupling 1": 1.0,
}
RECURRENT, COUPLED = tuple(COUPLINGS)[1:], tuple(COUPLINGS)[2:]
TREND = RECURRENT[:-1]
INDICES = ("convergence", "recurrence", "divergence")
WRONG = 9.0


def told(id, effect, *refuted, **more):
    """Returns a decorator of a function that returns frames, whose own arguments can be given."""
    return lambda frames, **given: IC.told(id, effect, *refuted, **more)(
        functools.partial(frames, **given)
    )


# IC-1


def inverse(closer=0.9, recurrent=None, plain=0.5, drop=0.05, speed=1.1):
    """The frame of the inverse problem; `recurrent` is the share of one network alone."""
    of_recurrent = closer if recurrent is None else recurrent
    shares = {"feed-forward": plain, "ResNet": closer, "recurrent ResNet": of_recurrent}
    values = {
        "closer": lambda row: shares[row.network],
        "drop": lambda row: 1.0 if row.network == "feed-forward" else drop,
        "first_speed": speed,
    }
    return {"trajectories": grid(values, {"network": tuple(shares), "seed": (0, 1, 2)})}


def of_kinds(*kinds, **values):
    """The same, of some networks only."""
    frame = inverse(**values)["trajectories"]
    return {"trajectories": frame[frame["network"].isin(kinds)]}


of_resnets = functools.partial(of_kinds, "ResNet", "recurrent ResNet")
told("IC-1a", 0.9, {"closer": 0.7}, otherwise=({"recurrent": 0.7}, {"closer": 0.796}))(of_resnets)
told("IC-1b", 0.5, {"plain": 0.8})(functools.partial(of_kinds, "feed-forward"))
told("IC-1c", 0.05, {"drop": 0.2})(inverse)
told("IC-1d", 1.1, {"speed": 1.4}, {"speed": 0.5})(of_resnets)


# Networks


def networks(**labels):
    """Labels of networks of all couplings."""
    return {
        "data": ("CIFAR-10",),
        "bounds": ("standard",),
        "variation": ("standard",),
        "setting": tuple(COUPLINGS),
        "width": WIDTHS,
        "seed": SEEDS,
    } | labels


def coupling(row):
    return COUPLINGS[row.setting]


def summary(error, **labels):
    """A frame of the errors of networks, a number or a function of a row."""
    values = {"error": error, "coupling": coupling}
    return {"summary": grid(values, networks(**labels))}


def with_indices(indices, of_stages=False, of_agreement=None, **labels):
    """A frame of indices, functions of a row: means over the stages, or of every stage.

    Other rows and indices have wrong numbers.
    """

    def column(of):
        def value(row):
            if (row.stage == "mean") == of_stages:
                return -WRONG
            if row.basis == "agreement":
                return of_agreement(row) if of_agreement else -WRONG
            return of(row) if callable(of) else of

        return value

    values = {f"{name}_index": column(indices.get(name, -WRONG)) for name in INDICES}
    values |= {f"{name}_index_se": 0.005 for name in INDICES}
    values |= {"coupling": coupling, "chance": 0.9}
    values["error"] = lambda row: 0.1 if row.basis == "labels" else 0.0
    keys = {"basis": ("labels", "agreement"), "stage": ("1", "2", "3", "mean")}
    return {"indices": grid(values, networks(**labels), **keys)}


def routes(error=0.1, agreement=0.97, blocks=3, **labels):
    """A frame of the errors on routes."""
    kinds = ("readout", "drop_blocks", "repeat_last_block")
    keys = {"route": kinds, "stage": (1, 2, 3), "block": range(blocks)}
    return {
        "route_errors": grid({"error": error, "agreement": agreement}, networks(**labels), **keys)
    }


def measured(indices, of_stages=False, of_agreement=None, error=0.1, blocks=3, **labels):
    """Frames of networks with their errors, indices and the errors on routes."""
    return (
        summary(error, **labels)
        | with_indices(indices, of_stages, of_agreement, **labels)
        | routes(blocks=blocks, **labels)
    )


# IC-2


def ordinary(blocks=16, test=0.1, jump=0.3, bump=0.0, cost=0.02, odd=None, **indices):
    """Frames of ordinary networks.

    Args:
        blocks: blocks per stage.
        test: the error on test images.
        jump: the part of the way that the block in the middle makes.
        bump: by how much the error is higher after a later block.
        cost: cost of a dropped block, the first of a stage left out.
        odd: the only stage for which `cost` is not 0.02, if any.
        **indices: the indices of a stage, and `first`, the divergence index of stage 1.
    """
    middle = blocks // 2

    def error(row):
        if row.route == "readout":
            equal = (1 - jump) / (blocks - 2) * (row.block - (row.block >= middle))
            way = equal + jump * (row.block >= middle)
            return 0.7 - 0.6 * way + bump * (row.block == middle + 2)
        if row.route == "drop_blocks":
            is_odd = odd in (None, row.stage)
            return 0.6 if row.block == 0 else 0.1 + (cost if is_odd else 0.02)
        return WRONG / 10

    labels = {"setting": ("ordinary",), "width": (8,)}
    first, others = indices.pop("first", 0.3), indices.get("divergence", 0.5)
    indices = {"recurrence": 0.95} | indices
    if "divergence" not in indices:
        indices["divergence"] = lambda row: first if row.stage == "1" else others
    return (
        summary(test, **labels)
        | with_indices(indices, of_stages=True, **labels)
        | routes(error, blocks=blocks, **labels)
    )


of_ordinary = functools.partial(told, undecidable=({"blocks": 5}, {"test": 0.3}))
of_ordinary("IC-2a", 0.3, {"jump": 0.7}, {"bump": 0.15})(ordinary)
of_ordinary("IC-2b1", 2, {"cost": 0.1}, otherwise=({"cost": 0.1, "odd": 2},))(ordinary)
of_ordinary("IC-2b2", 0.95, {"recurrence": 0.8}, {"recurrence": 1.2})(ordinary)
of_ordinary("IC-2c1", 0.5, {"divergence": 0.1})(ordinary, divergence=0.5)
of_ordinary("IC-2c2", -0.2, {"first": 0.6})(ordinary)


# IC-3


def over_coupling(convergence=0.3, divergence=-0.3, wide=0.0, scatter=0.0, **labels):
    """Frames of indices that change with the coupling, and by `wide` per doubling of channels."""

    def along(row, slope):
        is_odd = row.seed == 1 and row.setting == "coupling 0.5"
        return 0.5 + slope * coupling(row) + wide * (row.width == 8) + scatter * is_odd

    indices = {
        "convergence": lambda row: along(row, convergence),
        "divergence": lambda row: along(row, divergence),
    }
    return measured(indices, **labels)


told("IC-3a1", 0.3, {"convergence": -0.3}, otherwise=({"scatter": 0.6},))(
    over_coupling, setting=TREND
)
told("IC-3a2", -0.3, {"divergence": 0.3})(over_coupling, setting=TREND)
told("IC-3a5", 0.2, {"wide": -0.2})(over_coupling, wide=0.2, setting=TREND)
told("IC-3a6", -0.2, {"wide": 0.2})(over_coupling, wide=-0.2, setting=TREND)


@IC.told(
    "IC-3a3", 1.04, {"index": 1.2}, {"index": 0.8}, otherwise=({"index": 1.2, "odd": "coupling 1"},)
)
def _(index=1.04, odd=None):
    return measured({"recurrence": lambda row: index if odd in (None, row.setting) else 1.04})


@IC.told("IC-3a4", -0.2, {"last": 0.9})
def _(last=0.5):
    indices = {"convergence": lambda row: last if row.setting == "coupling 1" else 0.7}
    return measured(indices, setting=("coupling 0.9", "coupling 1"))


def rising(start=0.04, slope=0.04, data="CIFAR-10"):
    return summary(lambda row: start + slope * coupling(row), data=(data,))


told("IC-3b1", 4, {"slope": -0.03}, undecidable=({"start": 0.1},))(rising)
told("IC-3b2", 20, {"slope": -0.2}, undecidable=({"start": 0.6, "slope": 0.0},))(
    rising, start=0.3, slope=0.2, data="Digitclutter-5"
)


@IC.told("IC-3b3", -3, {"wide": 0.08}, undecidable=({"start": 0.1},))
def _(wide=0.02, start=0.04):
    def error(row):
        rise = wide if row.width == 8 else 0.05
        return start + rise * (row.setting != "ordinary")

    return summary(error, setting=("ordinary", "coupling 0.5", "coupling 0.9"))


# Ten places: the wider networks have the lower errors and the higher convergence index. Within a
# width, the ranks of the five couplings have no correlation.
UNRELATED = dict(zip(COUPLINGS, (1, 4, 2, 0, 3), strict=True))
ORDER = {name: i for i, name in enumerate(COUPLINGS)}


def related(wide=1, within=0):
    def index(row):
        return 5 * wide * (row.width == 8) + (ORDER if within else UNRELATED)[row.setting]

    indices = {"convergence": index, "divergence": lambda row: -index(row)}
    return measured(
        indices, error=lambda row: 0.35 + 0.05 * ORDER[row.setting] - 0.25 * (row.width == 8)
    )


told("IC-3c1", -62.5 / 82.5, {"wide": -1})(related)
told("IC-3c2", 62.5 / 82.5, {"wide": -1})(related)
told("IC-3c3", 0, {"within": 1})(related)


# IC-4


def bounded(name, usual, index=None, odd=None, blocks=16):
    """Frames of bounded networks, whose index is another one at all couplings, or at one."""

    def of(row):
        return index if index is not None and odd in (None, row.setting) else usual

    return measured({name: of}, blocks=blocks, bounds=("improperly convergent",), width=(8,))


for id, name, usual, wrong in (
    ("IC-4a1", "convergence", 0.8, 0.5),
    ("IC-4a2", "divergence", 0.02, 0.3),
    ("IC-4a3", "recurrence", 1.0, 0.8),
):
    told(
        id,
        usual,
        {"index": wrong},
        otherwise=({"index": wrong, "odd": "coupling 0.9"},),
        undecidable=({"blocks": 5},),
    )(bounded, name=name, usual=usual)


@IC.told("IC-4b", 5, {"rise": -0.05}, otherwise=({"at_one": -0.05}, {"widths": (8, 32)}))
def _(rise=0.05, at_one=None, widths=(8, 16)):
    def error(row):
        # The exception that the paper prints is no exception at another width.
        at_last = rise if at_one is None else at_one
        last = {16: -0.1, 32: -0.1}.get(row.width, at_last)
        by = last if row.setting == "coupling 1" else rise
        return 0.2 + 0.1 * coupling(row) + by * (row.bounds != "standard")

    return summary(error, bounds=("standard", "improperly convergent"), width=widths)


# IC-6 and IC-7


@IC.told("IC-6", 1, {"slope": -1})
def _(slope=1):
    def index(row):
        return 0.2 + 0.15 * int(row.stage) + 0.05 * ORDER[row.setting]

    return measured(
        dict.fromkeys(INDICES, index), of_stages=True, of_agreement=lambda row: slope * index(row)
    )


@IC.told("IC-7a", 0.5, {"count": 50}, {"count": 1200})
def _(count=550):
    counts = {"effective": count, "recurrent": 100, "raw": 1000}
    return {"weights": grid({f"{k}_parameters": v for k, v in counts.items()}, networks())}


@IC.told("IC-7b", 0.1, {"last": 0.01}, {"half": 0.5})
def _(last=0.0, half=0.2):
    found = {0.0: 0.4, 0.5: half, 0.9: 0.04, 1.0: last}
    values = {"deviation": lambda row: found[coupling(row)], "coupling": coupling}
    return {"weights": grid(values, networks(setting=RECURRENT))}


@IC.told("IC-7c", 0, {"alike": 0.0})
def _(alike=1.0):
    def effective(row):
        return (1000 - 900 * coupling(row)) * (row.width / 4) ** 2

    def error(row):
        # Where networks of one count do alike, the error depends on the count; or else on whether
        # blocks began equal, which the count does not tell.
        of_count = 0.9 - 0.08 * math.log(effective(row))
        return alike * of_count + (1 - alike) * (0.3 + 0.1 * (row.setting == "coupling 0"))

    return summary(error) | {"weights": grid({"effective_parameters": effective}, networks())}


# Variations


def trained_so(frame):
    """Returns the rows of networks that exist: kernels and late coupling need a coupling."""
    is_plain = frame["setting"].isin(["ordinary", "coupling 0"])
    return frame[~is_plain | frame["variation"].isin(["standard", "gamma 0.1"])]


def varied(error=0.4, odd=None, variations=("standard", "triangular"), **labels):
    """A frame of variations: without coupling the error is 0.3, with it 0.45, or another one."""

    def of(row):
        if row.setting == "ordinary":
            return 0.3
        is_plain = row.variation in ("standard", "gamma 0.1") or odd not in (None, row.setting)
        return 0.45 if is_plain else error

    frame = summary(of, variation=variations, **labels)["summary"]
    return {"summary": trained_so(frame)}


def with_gamma(change, odd=None, **labels):
    """A frame of networks that a gamma of 0.1 changes, at all couplings or at one."""

    def error(row):
        is_changed = row.variation != "standard" and odd in (None, row.setting)
        return 0.3 + 0.1 * coupling(row) + change * is_changed

    return summary(error, variation=("standard", "gamma 0.1"), **labels)


told("IC-8a1", -5, {"change": 0.05}, otherwise=({"change": -0.001},))(
    with_gamma, change=-0.05, setting=("coupling 0.9",)
)
told("IC-8a2", 2, {"change": -0.05}, otherwise=({"change": -0.05, "odd": "coupling 1"},))(
    with_gamma, change=0.02, setting=("ordinary", "coupling 0", "coupling 0.5", "coupling 1")
)
KERNELS = ("standard", "triangular", "triangular, as printed")
LATE = ("standard", "gamma 0.1", "late", "late, gamma 0.1")
told("IC-8b1", -5, {"error": 0.5}, otherwise=({"error": 0.5, "odd": "coupling 0.9"},))(
    varied, variations=KERNELS, setting=COUPLED[:-1]
)
told("IC-8b2", 10, {"error": 0.2})(varied, variations=KERNELS)
told("IC-8c1", -5, {"error": 0.5})(varied, variations=LATE, setting=("ordinary", *COUPLED))
told("IC-8c2", 10, {"error": 0.2})(varied, variations=LATE, setting=("ordinary", *COUPLED))
VARIATIONS = ("gamma 0.1", "triangular", "late", "late, gamma 0.1")


def indices_of_variations(slope=1, odd=("late",), setting=TREND):
    """A frame of indices, of which some variations have another recurrence index."""

    def along(sign):
        return lambda row: 0.5 + 0.3 * sign * slope * coupling(row)

    indices = {
        "convergence": along(1),
        "divergence": along(-1),
        "recurrence": lambda row: 0.8 if row.variation in odd else 1.0,
    }
    frame = with_indices(indices, variation=VARIATIONS, setting=setting)["indices"]
    return {"indices": trained_so(frame)}


told("IC-10a", 0.3, {"slope": -1})(indices_of_variations)
told("IC-10b", -0.3, {"slope": -1})(indices_of_variations)
# Of four variations, three have three couplings, and one has two settings more.
told("IC-10c", 11 / 14, {"odd": VARIATIONS}, otherwise=({"odd": VARIATIONS[2:]},))(
    indices_of_variations, setting=tuple(COUPLINGS)
)


# IC-11 and IC-13


@IC.told("IC-11a", 0.05, {"index": 0.2}, otherwise=({"index": 0.2, "odd": "coupling 0.9"},))
def _(index=0.05, odd=None):
    indices = {"divergence": lambda row: index if odd in (None, row.setting) else 0.05}
    return with_indices(indices, bounds=("properly convergent",), seed=(0, 1, 2))


@IC.told("IC-11b", 1.5, {"more": -0.02}, {"more": 0.06})
def _(more=0.015):
    bounds = ("improperly convergent", "properly convergent")
    return summary(lambda row: 0.2 + more * (row.bounds == bounds[1]), bounds=bounds)


@IC.told("IC-13", 1, {"best": 0.01}, otherwise=({"best": 0.01, "odd": "MNIST"},))
def _(best=0.03, odd=None):
    def error(row):
        of_best = best if odd in (None, row.data) else 0.03
        return {0.0: 0.02, 0.5: 0.04, 0.9: of_best}.get(coupling(row), 0.05)

    data = ("Digitclutter-5", "Digitclutter-3", "Digitclutter-4, few", "CIFAR-10, few", "MNIST")
    return summary(error, data=data)

"""Residual networks in plain NumPy and float64: states, losses, gradients and metrics per block.

Written from the papers' definitions, not from the package, and without Keras or TensorFlow. At
inference only (moving statistics, the mean of a dropout mask), channels last only. Blocks may share
weights, have a bounded Lipschitz constant (by the singular values of explicit matrices), and add
their branch to the input of their stage.

Every piece of the network is a function `x -> (y, pull)`, where `pull` takes the gradient of a
scalar with respect to `y` and returns the one with respect to `x`, written by hand.

    run = analyse(net.get_config(), weights_of(net), images, labels)
    run.states[2][0]            # input of the first block of the third stage
    cosine_loss(run)[2][0]      # per image
"""

from dataclasses import dataclass, field

import numpy as np

EPSILON = 1e-3  # of every batch normalization, Keras' default
TWO_LAYERS, BOTTLENECK = False, True

# C convolution, B batch normalization, R ReLU, + the addition; numbered in the order of the data.
ORDERS = {
    ("original", TWO_LAYERS): "C1 B1 R C2 B2 + R",
    ("original", BOTTLENECK): "C1 B1 R C2 B2 R C3 B3 + R",
    ("bn_after_addition", TWO_LAYERS): "C1 B1 R C2 + B2 R",
    ("bn_after_addition", BOTTLENECK): "C1 B1 R C2 B2 R C3 + B3 R",
    ("relu_before_addition", TWO_LAYERS): "C1 B1 R C2 B2 R +",
    ("relu_before_addition", BOTTLENECK): "C1 B1 R C2 B2 R C3 B3 R +",
    ("relu_only_preactivation", TWO_LAYERS): "R C1 B1 R C2 B2 +",
    ("relu_only_preactivation", BOTTLENECK): "R C1 B1 R C2 B2 R C3 B3 +",
    ("full_preactivation", TWO_LAYERS): "B1 R C1 B2 R C2 +",
    ("full_preactivation", BOTTLENECK): "B1 R C1 B2 R C2 B3 R C3 +",
}


def weights_of(net):
    """All variables of a network (or of a layer) in float64, by path."""
    return {v.path: np.asarray(v).astype(np.float64) for v in net.variables}


# Pieces: x -> (y, pull)


def chain(*pieces):
    def forward(x):
        pulls = []
        for piece in pieces:
            x, pull = piece(x)
            pulls.append(pull)

        def backward(dy):
            for pull in reversed(pulls):
                dy = pull(dy)
            return dy

        return x, backward

    return forward


def nothing(x):
    return x, lambda dy: dy


def relu(x):
    positive = x > 0
    return x * positive, lambda dy: dy * positive


def batch_normalization(gamma, beta, mean, variance):
    slope = gamma / np.sqrt(variance + EPSILON)

    def forward(x):
        return (x - mean) * slope + beta, lambda dy: dy * slope

    return forward


def added(number):
    return lambda x: (x + number, lambda dy: dy)


def multiplied(factors):
    """Times a number, or one per channel."""
    return lambda x: (x * factors, lambda dy: dy * factors)


def convolution(kernel, bias, stride=1):
    """A convolution of "same" padding as TensorFlow defines it.

    The output has ceil(n / stride) rows; the padding that needs is split in halves, the odd row
    below and on the right. So at stride 2 an even image is padded on one side only.
    """
    size = kernel.shape[0]
    matrix = kernel.reshape(-1, kernel.shape[3])

    def forward(x):
        images, *grid, channels = x.shape
        rows, columns = (-(-n // stride) for n in grid)
        lost = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in grid]
        sides = [(total // 2, total - total // 2) for total in lost]
        padded = np.pad(x, [(0, 0), *sides, (0, 0)])
        patches = np.empty((images, rows, columns, size * size * channels))
        for i in range(rows):
            for j in range(columns):
                top, left = i * stride, j * stride
                patch = padded[:, top : top + size, left : left + size]
                patches[:, i, j] = patch.reshape(images, -1)

        def backward(dy):
            spread = (dy @ matrix.T).reshape(images, rows, columns, size, size, channels)
            dpadded = np.zeros_like(padded)
            for i in range(rows):
                for j in range(columns):
                    top, left = i * stride, j * stride
                    dpadded[:, top : top + size, left : left + size] += spread[:, i, j]
            (top, _), (left, _) = sides
            return dpadded[:, top : top + x.shape[1], left : left + x.shape[2]]

        return patches @ matrix + bias, backward

    return forward


def subsample(channels, stride):
    """Every `stride`-th row and column, zero channels appended."""

    def forward(x):
        y = np.zeros((len(x), -(-x.shape[1] // stride), -(-x.shape[2] // stride), channels))
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                y[:, i, j, : x.shape[3]] = x[:, i * stride, j * stride]

        def backward(dy):
            dx = np.zeros_like(x)
            for i in range(dy.shape[1]):
                for j in range(dy.shape[2]):
                    dx[:, i * stride, j * stride] = dy[:, i, j, : x.shape[3]]
            return dx

        return y, backward

    return forward


def max_pooling(size):
    """Maxima of tiles of `size` x `size`; what does not fill a tile is dropped."""

    def forward(x):
        n, height, width, channels = x.shape
        y = np.empty((n, height // size, width // size, channels))
        places = {}
        for at in np.ndindex(y.shape):
            image, i, j, channel = at
            tile = x[image, i * size : (i + 1) * size, j * size : (j + 1) * size, channel]
            row, column = np.unravel_index(tile.argmax(), tile.shape)
            places[at] = image, i * size + row, j * size + column, channel
            y[at] = tile[row, column]

        def backward(dy):
            dx = np.zeros_like(x)
            for at, place in places.items():
                dx[place] = dy[at]
            return dx

        return y, backward

    return forward


def average_pooling(size):
    """Means over tiles of `size` x `size`; what does not fill a tile is dropped."""

    def forward(x):
        y = np.empty((len(x), x.shape[1] // size, x.shape[2] // size, x.shape[3]))
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                y[:, i, j] = x[:, i * size : (i + 1) * size, j * size : (j + 1) * size].mean((1, 2))

        def backward(dy):
            dx = np.zeros_like(x)
            for i in range(dy.shape[1]):
                for j in range(dy.shape[2]):
                    tile = dy[:, i : i + 1, j : j + 1] / size**2
                    dx[:, i * size : (i + 1) * size, j * size : (j + 1) * size] = tile
            return dx

        return y, backward

    return forward


def global_average(x):
    pixels = x.shape[1] * x.shape[2]
    return x.mean((1, 2)), lambda dy: np.ones(x.shape) * dy[:, None, None] / pixels


def flatten(x):
    return x.reshape(len(x), -1), lambda dy: dy.reshape(x.shape)


def dense(kernel, bias):
    return lambda x: (x @ kernel + bias, lambda dy: dy @ kernel.T)


def sigmoid(z):
    return np.where(z >= 0, 1 / (1 + np.exp(-np.abs(z))), 1 - 1 / (1 + np.exp(-np.abs(z))))


# Blocks


# What every application of a shared block has of its own.
OWN = {
    "shared": (),
    "unshared_statistics": ("moving_mean", "moving_variance"),
    "unshared_scale": ("gamma", "beta"),
    "unshared": ("moving_mean", "moving_variance", "gamma", "beta"),
}


class Weights:
    """The weights whose paths begin with a prefix, as pieces.

    Of a block that is another one, applied once more, `leader` is the prefix of that one, and `own`
    the names of the weights that this one has itself.
    """

    def __init__(self, weights, prefix, leader=None, own=()):
        self.weights, self.prefix = weights, prefix
        self.leader, self.own = leader or prefix, own

    def get(self, name):
        prefix = self.prefix if name.split("/")[-1] in self.own else self.leader
        return self.weights[f"{prefix}/{name}"]

    def slope(self, name):
        """What a normalization multiplies the channels by."""
        gamma, variance = self.get(f"{name}/gamma"), self.get(f"{name}/moving_variance")
        return gamma / np.sqrt(variance + EPSILON)

    def convolution(self, name="", stride=1):
        name = f"{name}/" if name else ""
        kernel, has_bias = self.get(f"{name}kernel"), f"{self.leader}/{name}bias" in self.weights
        bias = self.get(f"{name}bias") if has_bias else np.zeros(kernel.shape[3])
        return convolution(kernel, bias, stride)

    def normalization(self, name=""):
        name = f"{name}/" if name else ""
        names = ("gamma", "beta", "moving_mean", "moving_variance")
        return batch_normalization(*(self.get(name + part) for part in names))


def joined(shortcut, weights):
    """Shortcut and branch in one: `(h, f) -> (sum, pull)`, where pull gives (dh, df)."""
    settings = {}
    if not isinstance(shortcut, str):
        settings = shortcut["config"]
        shortcut = {
            "IdentityShortcut": "identity",
            "ScaledShortcut": "scaled",
            "ExclusiveGateShortcut": "exclusive_gate",
            "ShortcutOnlyGateShortcut": "shortcut_only_gate",
            "ConvolutionShortcut": "conv1x1",
            "DropoutShortcut": "dropout",
        }[shortcut["class_name"]]
    name = settings.get("name", "shortcut")
    if shortcut == "identity":
        return lambda h, f: (h + f, lambda dy: (dy, dy))
    if shortcut == "dropout":
        mean = 1 if settings.get("rescale", False) else 1 - settings.get("rate", 0.5)
        return lambda h, f: (mean * h + f, lambda dy: (mean * dy, dy))
    if shortcut == "scaled":
        a, b = settings.get("scale", 0.5), settings.get("branch_scale", 1.0)
        return lambda h, f: (a * h + b * f, lambda dy: (a * dy, b * dy))
    if shortcut == "conv1x1":
        mix = weights.convolution(f"{name}/convolution")

        def join(h, f):
            y, pull = mix(h)
            return y + f, lambda dy: (pull(dy), dy)

        return join
    gate = weights.convolution(f"{name}/gate")
    branch_too = shortcut == "exclusive_gate"

    def join(h, f):
        z, pull = gate(h)
        g = sigmoid(z)
        y = (1 - g) * h + (g * f if branch_too else f)

        def backward(dy):
            dg = dy * (f - h if branch_too else -h)
            dh = (1 - g) * dy + pull(dg * g * (1 - g))
            return dh, (g * dy if branch_too else dy)

        return y, backward

    return join


def convolution_matrix(kernel, grid, stride=1):
    """The matrix of a convolution without bias, from images of a grid to images, both flattened."""
    size = int(np.prod([*grid, kernel.shape[2]]))
    units = np.eye(size).reshape(size, *grid, kernel.shape[2])
    images, _ = convolution(kernel, np.zeros(kernel.shape[3]), stride)(units)
    return images.reshape(size, -1).T


def lipschitz_bound(config, weights, grid, stride=1):
    """Product of the spectral norms of what stands between the ReLUs of a branch, BN folded in.

    A ReLU multiplies by zeros and ones, so that the slopes of a normalization in front of the first
    convolution may be taken after it.
    """
    matrices, slope_before = [], None
    branch, _ = order_of(config).split("+")
    for operation in branch.split():
        if operation[0] == "C":
            kernel = weights.get(f"convolution{operation[1]}/kernel")
            own_stride = stride if operation[1] == "1" else 1
            matrix = convolution_matrix(kernel, grid, own_stride)
            if slope_before is not None:
                matrix = matrix @ np.diag(np.tile(slope_before, grid[0] * grid[1]))
            grid, slope_before = [-(-n // own_stride) for n in grid], None
            matrices.append(matrix)
        elif operation[0] == "B":
            slope = weights.slope(f"normalization{operation[1]}")
            if matrices:
                matrices[-1] = np.diag(np.tile(slope, grid[0] * grid[1])) @ matrices[-1]
            else:
                slope_before = slope
    return np.prod([np.linalg.svd(matrix, compute_uv=False)[0] for matrix in matrices])


def order_of(config):
    """The order of a unit's operations; b are the biases of Fixup, M what multiplies the branch."""
    order = ORDERS[config["layout"], bool(config["bottleneck"])].split()
    normalization = config.get("normalization", "batch")
    if normalization != "batch":
        order = [operation for operation in order if operation[0] != "B"]
    branch, after = order[: order.index("+")], order[order.index("+") :]
    if normalization == "fixup":
        # Before every convolution and ReLU; the ReLU after the addition has its own in the branch.
        branch = [part for i, one in enumerate(branch, 1) for part in (f"b{i}", one)]
        branch += ["M", *[f"b{len(branch) // 2 + 1}" for one in after if one == "R"]]
    elif config.get("multiplier") is not None:
        branch += ["M"]
    return " ".join(branch + after)


def residual_unit(config, weights, channels, stride=1, zero_padding=False):
    """One block. `config` names layout, bottleneck, shortcut and, if any, the Lipschitz constant.

    The piece takes two more arguments: what its branch is multiplied by, 1 unless said otherwise,
    and the state that the branch is added to instead of the unit's input. Where this one is given,
    the gradient is a pair: with respect to the input, and with respect to that state.
    """
    sides = ([], [])
    after_addition = False
    lipschitz, divisors = config.get("lipschitz"), {}
    for operation in order_of(config).split():
        if operation == "+":
            after_addition = True
        elif operation[0] == "b":
            sides[0].append(added(weights.get(f"scalar_bias{operation[1]}/bias")))
        elif operation == "M":
            # Shared blocks share it, whatever they have of their own of a normalization.
            sides[0].append(multiplied(weights.weights[f"{weights.leader}/multiplier/gamma"]))
        elif operation == "R":
            sides[after_addition].append(relu)
        elif operation[0] == "B":
            sides[after_addition].append(weights.normalization(f"normalization{operation[1]}"))
        else:
            own_stride = stride if operation[1] == "1" else 1
            sides[after_addition].append(
                weights.convolution(f"convolution{operation[1]}", own_stride)
            )
    branch, after = chain(*sides[0]), chain(*sides[1])

    def divisor(grid):
        if lipschitz is None:
            return 1.0
        if grid not in divisors:
            divisors[grid] = max(lipschitz_bound(config, weights, grid, stride) / lipschitz, 1.0)
        return divisors[grid]

    def forward(h, scale=1.0, anchor=None):
        scale = scale / divisor(h.shape[1:3])
        resize, shortcut = nothing, config["shortcut"]
        if stride > 1 or h.shape[3] != channels:
            if zero_padding:
                resize = subsample(channels, stride)
            else:
                resize = weights.convolution("projection", stride)
                # A projection already is the shortcut's 1x1 convolution: not one more of them.
                if "conv1x1" in str(shortcut) or "ConvolutionShortcut" in str(shortcut):
                    shortcut = "identity"
        f, pull_branch = branch(h)
        resized, pull_resize = resize(h if anchor is None else anchor)
        total, pull_join = joined(shortcut, weights)(resized, scale * f)
        y, pull_after = after(total)

        def backward(dy):
            dresized, df = pull_join(pull_after(dy))
            dstate, dh = pull_resize(dresized), pull_branch(scale * df)
            return dstate + dh if anchor is None else (dh, dstate)

        return y, backward

    # What is joined to the state.
    forward.branch = lambda h: branch(h)[0] / divisor(h.shape[1:3])
    return forward


class NumpyNetwork:
    """The pieces of a network: `stem`, `transitions[s]`, `units[s][t]` and `head` (to logits).

    `changes[s]` is the set of the units that change the shape of the state. `stage(s, ..)` leads
    through a stage, whatever its units add their branch to.
    """

    def __init__(self, config, weights):
        assert config["data_format"] == "channels_last"
        self.config = config
        activation_first = "preactivation" in config["layout"]
        normalization = config.get("normalization", "batch")

        def activated(prefix):
            if normalization == "batch":
                return [Weights(weights, f"{prefix}_normalization").normalization(), relu]
            is_fixup = normalization == "fixup"
            return [added(weights[f"{prefix}_relu_bias/bias"]), relu] if is_fixup else [relu]

        stem = [Weights(weights, "stem").convolution()]
        if not activation_first:
            stem += activated("stem")
        self.stem = chain(*stem)
        self.transitions, self.units, self.changes = [], [], []
        transition = config["transition"]
        free = config | {"lipschitz": None}
        channels = weights["stem/kernel"].shape[3]
        for s, (depth, width) in enumerate(zip(config["blocks"], config["widths"], strict=True)):
            own = Weights(weights, f"stage{s + 1}_transition")
            if s == 0 or transition == "projection":
                self.transitions.append(nothing)
            elif transition == "average_pooling":
                self.transitions.append(average_pooling(2))
            elif transition == "max_pooling":
                self.transitions.append(max_pooling(2))
            elif transition == "convolution":
                self.transitions.append(own.convolution(stride=2))
            else:
                self.transitions.append(residual_unit(free, own, width, 2, zero_padding=True))
            strides = s > 0 and transition == "projection"
            # The other transitions bring the channels of the stage with them.
            widens = (s == 0 or transition.endswith("_pooling")) and channels != width
            self.changes.append({0} if strides or widens else set())
            units, leader, share_from = [], None, config["share_from"]
            for t in range(depth):
                prefix = f"stage{s + 1}_block{t}"
                if t in self.changes[s]:
                    units.append(residual_unit(free, Weights(weights, prefix), width, 1 + strides))
                    continue
                own = Weights(weights, prefix, leader, OWN[config["batch_norm"]])
                units.append(residual_unit(config, own, width))
                if leader is None and share_from is not None and t >= share_from:
                    leader = prefix
            self.units.append(units)
            channels = width
        head = []
        if activation_first:
            head += activated("head")
        if config["pooling"] == "global":
            head += [global_average]
        else:
            head += [average_pooling(config["pooling"]), flatten]
        if normalization == "fixup":
            head += [added(weights["head_bias/bias"])]
        head += [dense(weights["classifier/kernel"], weights["classifier/bias"])]
        self.head = chain(*head)

    def stage(self, s, state, applied=None):
        """Leads the last state of the stage before through a stage.

        Args:
            s: which stage, counted from 0.
            state: the stage's input.
            applied: pairs (unit, what its branch is multiplied by), in order; by default all units.

        Returns:
            A tuple `(states, backward)`. The first of the states is that after the transition, and
            one follows for every unit. `backward` takes the gradient with respect to the last one
            and returns the gradients with respect to all of them, and to the stage's input.
        """
        if applied is None:
            applied = [(t, 1.0) for t in range(len(self.units[s]))]
        state, pull_transition = self.transitions[s](state)
        states, pulls, anchors, anchor = [state], [], [], 0
        for t, scale, *_ in applied:
            joins_input = self.config["anchor"] == "input" and t not in self.changes[s]
            given = {"anchor": states[anchor]} if joins_input else {}
            state, pull = self.units[s][t](states[-1], scale, **given)
            pulls.append(pull)
            anchors.append(anchor if joins_input else None)
            states.append(state)
            if t in self.changes[s]:
                anchor = len(states) - 1

        def backward(dy):
            gradients = [np.zeros_like(state) for state in states[:-1]] + [dy]
            for i in reversed(range(len(pulls))):
                gradient = pulls[i](gradients[i + 1])
                if anchors[i] is not None:
                    gradient, to_anchor = gradient
                    gradients[anchors[i]] = gradients[anchors[i]] + to_anchor
                gradients[i] = gradients[i] + gradient
            return gradients, pull_transition(gradients[0])

        return states, backward

    def activated(self, logits):
        """Logits as the network returns them."""
        activation = self.config["classifier_activation"]
        if activation == "softmax":
            return softmax(logits)
        return sigmoid(logits) if activation == "sigmoid" else logits


# Losses: logits and labels -> loss per image, and its gradient with respect to the logits


def softmax(z):
    powers = np.exp(z - z.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def loss_of_logits(logits, labels):
    """Softmax cross-entropy for integer labels, mean binary cross-entropy for k-hot ones."""
    labels = np.asarray(labels)
    if labels.ndim == 1:
        hot = np.zeros_like(logits)
        for image, label in enumerate(labels.astype(int)):
            hot[image, label] = 1
        shifted = logits - logits.max(1, keepdims=True)
        normalizer = np.log(np.exp(shifted).sum(1, keepdims=True))
        return -((shifted - normalizer) * hot).sum(1), softmax(logits) - hot
    # -y log s(z) - (1 - y) log s(-z), with log s(z) = -log(1 + exp(-z))
    losses = labels * np.logaddexp(0, -logits) + (1 - labels) * np.logaddexp(0, logits)
    return losses.mean(1), (sigmoid(logits) - labels) / logits.shape[1]


# The whole network


@dataclass
class Run:
    """What one batch leaves behind. Lists over stages of lists over blocks of arrays."""

    states: list  # h_t, the input of each block
    last_states: list  # the output of each stage's last block
    logits: np.ndarray
    outputs: np.ndarray  # as the network returns them
    losses: np.ndarray  # per image
    gradients: list  # dL/dh_t per image
    last_gradients: list  # dL/d(last state)
    readout_gradients: list = field(default_factory=list)  # last stage; None: another shape

    def by_stage(self):
        """For every stage a list of (h_t, F_t, g_t, g_t of the read-out); F None: shape changed."""
        stages = []
        for s, (states, gradients) in enumerate(zip(self.states, self.gradients, strict=True)):
            following = [*states[1:], self.last_states[s]]
            last = s == len(self.states) - 1
            readouts = self.readout_gradients if last else [None] * len(states)
            stages.append(
                [
                    (h, after - h if after.shape == h.shape else None, g, readout)
                    for h, after, g, readout in zip(
                        states, following, gradients, readouts, strict=True
                    )
                ]
            )
        return stages


def analyse(config, weights, images, labels):
    """Runs a batch forwards and backwards.

    Args:
        config: `net.get_config()`.
        weights: `weights_of(net)`.
        images: array (images, height, width, channels).
        labels: ints (images,) for softmax cross-entropy, or zeros and ones (images, classes) for
            binary cross-entropy.

    Returns:
        A `Run`.
    """
    net = NumpyNetwork(config, weights)
    state, _ = net.stem(np.asarray(images, np.float64))
    states, last_states, pulls = [], [], []
    for s in range(len(net.units)):
        (*before, state), pull = net.stage(s, state)
        states.append(before)
        last_states.append(state)
        pulls.append(pull)
    logits, pull_head = net.head(state)
    losses, dlogits = loss_of_logits(logits, labels)

    gradient = pull_head(dlogits)
    gradients, last_gradients = [], []
    for pull in reversed(pulls):
        last_gradients.insert(0, gradient)
        (*stage, _), gradient = pull(gradient)
        gradients.insert(0, stage)

    readouts = []
    for state in states[-1]:
        if state.shape != last_states[-1].shape:
            readouts.append(None)
            continue
        early_logits, pull = net.head(state)
        readouts.append(pull(loss_of_logits(early_logits, labels)[1]))
    outputs = net.activated(logits)
    return Run(states, last_states, logits, outputs, losses, gradients, last_gradients, readouts)


# Metrics: for every stage an array (blocks, images), NaN where the shape changes


def norm(x):
    """Euclidean norm over all features, per image."""
    return np.array([np.sqrt(np.sum(image * image)) for image in x])


def cosine(a, b):
    """<a, b> / (|a| |b|) per image; 0 where one of them is zero."""
    values = np.zeros(len(a))
    for i in range(len(a)):
        size = np.sqrt(np.sum(a[i] ** 2)) * np.sqrt(np.sum(b[i] ** 2))
        values[i] = np.sum(a[i] * b[i]) / size if size > 0 else 0.0
    return values


def _per_block(run, metric):
    images = len(run.losses)
    return [
        np.array(
            [metric(h, f, g, r) if f is not None else np.full(images, np.nan) for h, f, g, r in s]
        )
        for s in run.by_stage()
    ]


def cosine_loss(run):
    """<F, g> / (|F| |g|)."""
    return _per_block(run, lambda h, f, g, readout: cosine(f, g))


def readout_cosine_loss(run):
    """The same with the gradient of the head's loss at h_t; NaN outside the last stage."""
    missing = np.full(len(run.losses), np.nan)
    return _per_block(run, lambda h, f, g, r: missing if r is None else cosine(f, r))


def l2_ratio(run):
    """|F| / |h_t|."""
    return _per_block(run, lambda h, f, g, readout: norm(f) / norm(h))


def gradient_norm(run):
    """|dL/dh_t|, of every block."""
    return [np.array([norm(gradient) for gradient in stage]) for stage in run.gradients]


def perturbation(run):
    """|F|."""
    return _per_block(run, lambda h, f, g, readout: norm(f))


def scaled_perturbation(run):
    """|F| / |h_t|."""
    return _per_block(run, lambda h, f, g, readout: norm(f) / norm(h))


def computational_distance(run):
    """How far the state travels, per stage and through all of them, mean over images.

    Returns:
        A dict of `"absolute"` and `"scaled"`, each a dict of `"stages"` (a list, one sum over
        the blocks that keep their shape per stage), `"total"`, `"stage_means"` and `"mean"`:
        the sums divided by the number of those blocks (NaN for a stage without one).
    """
    result = {}
    for kind, sizes in (("absolute", perturbation(run)), ("scaled", scaled_perturbation(run))):
        counts = [sum(not np.isnan(block).any() for block in stage) for stage in sizes]
        per_image = [np.nansum(stage, axis=0) for stage in sizes]
        means = [
            (sums / count).mean() if count else np.nan
            for sums, count in zip(per_image, counts, strict=True)
        ]
        total = np.sum(per_image, axis=0)
        result[kind] = {
            "stages": [sums.mean() for sums in per_image],
            "total": total.mean(),
            "stage_means": means,
            "mean": (total / sum(counts)).mean() if sum(counts) else np.nan,
        }
    return result

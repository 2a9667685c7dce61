"""Chains from SavedModels that `tfresidual.export` wrote. TensorFlow only."""

import json
import pathlib
import re

import tensorflow as tf
from google.protobuf.message import DecodeError

from tfresidual.chains.chain import OUTPUT_KINDS, Block, Chain, Stage
from tfresidual.chains.losses import loss_from
from tfresidual.chains.outputs import LOGITS, OUTPUTS

# What the reader and the writer agree on. A reader takes what was written in its own format and
# in older ones.
FORMAT = 1
LAYOUT_FILE = pathlib.PurePath("assets.extra", "tfresidual.json")
GRAPH_FILE = "saved_model.pb"
STEM, HEAD, LOSS = "stem", "head", "loss"
# The functions of a block. The first is not put together from the others: TensorFlow would round
# otherwise in bfloat16 than where it compiles the block as a whole.
PARTS = ("apply", "branch", "join")
# What TensorFlow, and the chain that is put together, raise where something is missing or damaged.
UNREADABLE = (
    *(OSError, ValueError, KeyError, AttributeError, IndexError, TypeError),
    *(tf.errors.OpError, DecodeError),
)
SERVE = "serving_default"


def transition_name(stage):
    """The name of the function that leads into a stage."""
    return f"stage{stage}/transition"


def block_name(stage, step, part):
    """The name of a block's function, one of `PARTS`."""
    return f"stage{stage}/block{step}/{part}"


def saved_model_chain(path):
    """The chain of a SavedModel, without the code that built its network.

    But for what TensorFlow's own loader does, nothing in the folder is executed.

    Args:
        path: the folder that `tfresidual.export` wrote.

    Returns:
        A `tfresidual.chains.Chain`.

    Raises:
        ValueError: if the folder is none, was written without the functions for probing or in a
            newer format, or is damaged.
    """
    path = pathlib.Path(path)
    layout = _layout(path)
    try:
        root = tf.saved_model.load(str(path))
        pieces = {name: _Piece(root, name) for name in layout["pieces"]}
        parameters = [root.parameters[place] for place in range(layout["parameters"])]
        return _chain(layout, pieces, parameters, _Reference(root))
    except UNREADABLE as error:
        raise _damaged(path, error) from error


def is_saved_model(path):
    """Whether a folder holds, or held, a SavedModel."""
    path = pathlib.Path(path)
    return (path / GRAPH_FILE).exists() or (path / LAYOUT_FILE).exists()


def series_path(folder, epoch):
    """Where the SavedModel of an epoch is in a series; epochs count from 1, 0 is the beginning."""
    return pathlib.Path(folder) / f"epoch{epoch:04d}"


def series_of(folder, is_member=is_saved_model):
    """The SavedModels in the folder of a series, as a dict from epoch to path, in order.

    Args:
        folder: the folder. It need not be there.
        is_member: the function of a path that says whether what has such a name belongs to it.
    """
    found = {}
    for path in pathlib.Path(folder).glob("epoch*"):
        match = re.fullmatch("epoch([0-9]+)", path.name)
        # `epoch1` beside `epoch0001` is not written by `series_path`.
        if match and path.name == series_path("", int(match[1])).name and is_member(path):
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def check_whole(path):
    """Raises a `ValueError` unless a SavedModel can be probed, as far as is seen without loading.

    Args:
        path: the folder that `tfresidual.export` wrote.
    """
    _layout(path)
    for pattern in (GRAPH_FILE, "variables/variables.index", "variables/variables.data-*"):
        if not any(file.stat().st_size for file in path.glob(pattern)):
            raise _damaged(path, FileNotFoundError(f"there is no {pattern} in it"))


def _layout(path):
    if not is_saved_model(path):
        raise ValueError(
            "Argument `source` must be the folder of a SavedModel that `tfresidual.export` wrote; "
            f"there is no {GRAPH_FILE} in it. Received: source={str(path)!r}"
        )
    if not (path / LAYOUT_FILE).exists():
        raise ValueError(
            "Argument `source` must be a SavedModel that `tfresidual.export` wrote: only such a "
            "one holds what probes read. This one has no "
            f"{LAYOUT_FILE}. Received: source={str(path)!r}"
        )
    try:
        layout = json.loads((path / LAYOUT_FILE).read_text("utf-8"))
        version, written_by = layout["format"], layout["tfresidual"]
        is_for_probing = layout["probing"]
        _require(_is_count(version) and version > 0, "format")
        if version <= FORMAT:
            _check_layout(layout)
    except PermissionError:
        # A file that may not be read is none that is damaged.
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error
    if version > FORMAT:
        raise ValueError(
            f"Argument `source` must be a SavedModel of format {FORMAT} or older; tfresidual "
            f"{written_by} wrote a newer one. Update tfresidual. "
            f"Received: source={str(path)!r} of format {version!r}"
        )
    if not is_for_probing:
        raise ValueError(
            "Argument `source` must be a SavedModel with the functions for probing; this one was "
            f"exported with `probing=False`. Received: source={str(path)!r}"
        )
    return layout


def _check_layout(layout):
    """Raises an error unless a layout says what a chain needs, and in the types it needs."""
    _require(isinstance(layout["probing"], bool), "probing")
    _require(isinstance(layout["name"], str), "name")
    _require(layout["outputs"] in OUTPUT_KINDS, "outputs")
    sizes = layout["input_shape"]
    _require(_is_list(sizes) and all(size is None or _is_count(size) for size in sizes), "shape")
    if not layout["probing"]:
        return
    notes, pieces, count = layout["notes"], layout["pieces"], layout["parameters"]
    _require(_is_list(notes) and all(isinstance(note, str) for note in notes), "notes")
    _require(_is_list(pieces) and {STEM, HEAD} <= set(pieces), "pieces")
    _require(_is_count(count), "parameters")
    _require(layout["loss"] is None or isinstance(layout["loss"], dict), "loss")
    stages = layout["stages"]
    _require(_is_list(stages) and len(stages) > 0, "stages")
    for index, stage in enumerate(stages, start=1):
        _require(stage["stage"] == index, "stage")
        _require(_is_list(stage["blocks"]), "blocks")
        for step, block in enumerate(stage["blocks"]):
            parts = {part for part in PARTS if block_name(index, step, part) in pieces}
            _require("apply" in parts and len(parts) != 2, f"pieces of block {step}")
            _require(isinstance(block["keeps_shape"], bool), "keeps_shape")
            _require(isinstance(block["takes_anchor"], bool), "takes_anchor")
            for name in ("shortcut", "name"):
                _require(block[name] is None or isinstance(block[name], str), name)
            places = block["weights"].values()
            _require(all(_is_count(place) and place < count for place in places), "weights")
            bounds = block["lipschitz"]
            _require(bounds is None or isinstance(bounds, dict), "lipschitz")


def _require(is_right, name):
    if not is_right:
        raise ValueError(f"{LAYOUT_FILE.name}: {name!r} is not what it must be")


def _is_list(value):
    return isinstance(value, list)


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _damaged(path, error):
    reason = str(error).strip().splitlines()
    return ValueError(
        "Argument `source` must be a whole SavedModel; this one is damaged or incomplete "
        f"({type(error).__name__}: {reason[0] if reason else ''}). Received: source={str(path)!r}"
    )


class _Piece:
    """A loaded function of tensors, which takes them in any float dtype."""

    def __init__(self, root, name):
        # The root is kept: its variables live as long as it does.
        self.root = root
        (self.concrete,) = root.pieces[name].concrete_functions
        self.dtypes = [spec.dtype for spec in self.concrete.structured_input_signature[0]]

    def __call__(self, *tensors):
        given = zip(tensors, self.dtypes, strict=True)
        return self.concrete(*(tf.cast(tensor, dtype) for tensor, dtype in given))


class _Reference:
    """What a loaded network answers when it is served."""

    def __init__(self, root):
        self.root = root
        self.serve = root.signatures[SERVE]

    def __call__(self, images):
        return self.serve(images=tf.cast(images, tf.float32))[OUTPUTS]


def _chain(layout, pieces, parameters, reference):
    return Chain(
        name=layout["name"],
        stem=pieces[STEM],
        stages=tuple(_stage(stage, pieces, parameters) for stage in layout["stages"]),
        head=_head(pieces[HEAD]),
        loss=_loss(layout, pieces),
        input_shape=tuple(layout["input_shape"]),
        outputs=layout["outputs"],
        notes=tuple(layout["notes"]),
        weights=tuple(parameters),
        reference=reference,
        graphs={tf.compat.as_str(p.concrete.name): p.concrete.graph for p in pieces.values()},
    )


def _stage(layout, pieces, parameters):
    blocks = tuple(
        _block(layout["stage"], step, block, pieces, parameters)
        for step, block in enumerate(layout["blocks"])
    )
    return Stage(layout["stage"], blocks, pieces.get(transition_name(layout["stage"])))


def _block(stage, step, layout, pieces, parameters):
    functions = {part: pieces.get(block_name(stage, step, part)) for part in PARTS}
    bounds = layout["lipschitz"]
    return Block(
        stage=stage,
        step=step,
        keeps_shape=layout["keeps_shape"],
        takes_anchor=layout["takes_anchor"],
        weights={role: parameters[place] for role, place in layout["weights"].items()},
        lipschitz=None if bounds is None else lambda: dict(bounds),
        shortcut=layout["shortcut"],
        name=layout["name"],
        **functions,
    )


def _head(piece):
    def head(state):
        values = piece(state)
        outputs = values[OUTPUTS]
        if LOGITS in values:
            # Where Keras leaves them, and the losses look for them.
            outputs._keras_logits = values[LOGITS]
        return outputs

    return head


def _loss(layout, pieces):
    if layout["loss"] is not None:
        return loss_from(layout["loss"])
    by_rank = {
        len(piece.concrete.structured_input_signature[0][0].shape): piece
        for name, piece in pieces.items()
        if name.startswith(LOSS)
    }

    def loss(labels, outputs):
        if labels.shape[1:] == (1,) and 1 in by_rank:
            labels = tf.reshape(labels, [-1])
        if not by_rank:
            raise ValueError(
                "Argument `chain` must be of a network whose loss gives one number for each image. "
                f"Received: {layout['name']}, whose loss took no labels when it was exported"
            )
        if len(labels.shape) not in by_rank:
            raise ValueError(
                "Argument `data` must hold labels as the loss of the network takes them, with "
                f"{' or '.join(map(str, sorted(by_rank)))} axes. "
                f"Received: labels of shape {tuple(labels.shape)}"
            )
        logits = getattr(outputs, "_keras_logits", None)
        return by_rank[len(labels.shape)](labels, outputs, *([] if logits is None else [logits]))

    return loss

"""The probes against what one would write by hand in PyTorch, on the same weights.

    python benchmarks/by_hand.py [--blocks 9 27] [--images 512] [--dtypes float32]
        [--sequences 64] [--only NAME ...] [--python PATH]

Whole calls, in alternating rounds with PyTorch in a process of its own: eager, channels last, loops
over blocks, gradients with respect to the states alone. ResNets with images of 32x32x3 in batches
of 128; a GPT-2 of 12 layers, 384 features and 1,000 words (Hugging Face's) with sequences of 64
words in batches of 16. Above 1, tfresidual is faster. Both compute the same numbers: a row is given
only if cosines, errors and losses agree to 1e-4. A call of tfresidual also compares the chain with
its network, on 4 images whatever their number; *not compared* is a chain without `reference`.

*Forward pass alone* is the network as it is, in both frameworks, without probes. What routes gain
on a loop is that times what common beginnings save: without each of 24 half-layers, 552 are applied
by hand and 300 in routes, 1.84 times fewer; without each of the 25 of 27 blocks that can go, 650
and 353, which is the same.

`--only` names what is measured, by its first word; `--python` is an interpreter with torch and
transformers, by default this one. The settings say where the environment has
TF_ENABLE_ONEDNN_OPTS=0, or one thread (TF_NUM_INTRAOP_THREADS=1, TF_NUM_INTEROP_THREADS=1 and
OMP_NUM_THREADS=1).
"""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

BATCH = 128
LAYERS, FEATURES, HEADS, WORDS, AT_ONCE, POSITIONS = 12, 384, 6, 1000, 16, 64
AGREEMENT = 1e-4
# What neither of the two can do without.
FORWARD = "forward pass alone"
# Of a chain without the network that it is compared with.
NOT_COMPARED = ", not compared"


# By hand, in PyTorch


def torch_resnet(weights, blocks):
    """Returns stem, blocks and head as functions of tensors."""
    import torch
    from torch.nn import functional

    kernels = {
        name: torch.tensor(value.transpose(3, 2, 0, 1) if value.ndim == 4 else value)
        for name, value in weights.items()
    }
    for name, value in kernels.items():
        if value.ndim == 4:
            kernels[name] = value.contiguous(memory_format=torch.channels_last)

    def convolution(name, state, stride=1):
        kernel = kernels[f"{name}/kernel"]
        if kernel.shape[-1] == 3:
            # Keras pads at the end where the stride is 2.
            state = functional.pad(state, (0, 1, 0, 1)) if stride == 2 else state
            padding = 2 - stride
        else:
            padding = 0
        return functional.conv2d(state, kernel, kernels.get(f"{name}/bias"), stride, padding)

    def activated(name, state):
        names = ("moving_mean", "moving_variance", "gamma", "beta")
        return functional.relu(
            functional.batch_norm(state, *(kernels[f"{name}/{one}"] for one in names), eps=1e-3)
        )

    def block(name, stride):
        def apply(state):
            branch = convolution(
                f"{name}/convolution1", activated(f"{name}/normalization1", state), stride
            )
            branch = convolution(
                f"{name}/convolution2", activated(f"{name}/normalization2", branch)
            )
            if stride == 2:
                state = convolution(f"{name}/projection", state, 2)
            return state + branch

        apply.changes_shape = stride == 2
        return apply

    def head(state):
        state = activated("head_normalization", state).mean((2, 3))
        return state @ kernels["classifier/kernel"] + kernels["classifier/bias"]

    names = [(s, b) for s in range(1, 4) for b in range(blocks // 3)]
    parts = [block(f"stage{s}_block{b}", 2 if s > 1 and b == 0 else 1) for s, b in names]
    return lambda images: convolution("stem", images), parts, head


def of_resnet(folder, blocks, dtype):
    """Returns the functions that are timed, by name."""
    import torch
    from torch.nn import functional

    stem, parts, head = torch_resnet(np.load(folder / "weights.npz"), blocks)
    data = np.load(folder / "data.npz")
    images = torch.tensor(data["images"].transpose(0, 3, 1, 2))
    images = images.contiguous(memory_format=torch.channels_last)
    batches = list(zip(images.split(BATCH), torch.tensor(data["labels"]).split(BATCH), strict=True))
    lower = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "mixed_bfloat16")

    def metrics():
        rows = []
        for x, y in batches:
            with lower:
                states = [stem(x).requires_grad_()]
                for part in parts:
                    states.append(part(states[-1]))
                logits = head(states[-1]).float()
            loss = functional.cross_entropy(logits, y, reduction="sum")
            gradients = torch.autograd.grad(loss, states[:-1])
            found = []
            for part, before, after, gradient in zip(
                parts, states, states[1:], gradients, strict=False
            ):
                if part.changes_shape:
                    continue
                before, after, gradient = (
                    t.detach().float().flatten(1) for t in (before, after, gradient)
                )
                change = after - before
                norms = [t.norm(dim=1) for t in (before, change, gradient)]
                cosine = (change * gradient).sum(1) / (norms[1] * norms[2])
                found.append(torch.stack([cosine, norms[1] / norms[0]]))
            rows.append(torch.stack(found))
        return torch.cat(rows, -1).mean(-1)

    @torch.inference_mode()
    def errors():
        found = []
        for index, left_out in enumerate(parts):
            if left_out.changes_shape:
                continue
            wrong = 0
            for x, y in batches:
                with lower:
                    state = stem(x)
                    for place, part in enumerate(parts):
                        state = state if place == index else part(state)
                    wrong += (head(state).argmax(1) != y).sum()
            found.append(wrong / len(images))
        return torch.stack(found)

    @torch.inference_mode()
    def forward():
        found = []
        for x, _ in batches:
            with lower:
                state = stem(x)
                for part in parts:
                    state = part(state)
                found.append(head(state).float().softmax(-1))
        return torch.cat(found)

    return {
        "cosine and l2 ratio": metrics,
        "error without each block": errors,
        FORWARD: forward,
    }


def of_gpt2(folder, *_):
    """Returns the functions that are timed, by name."""
    import torch
    from torch.nn import functional
    from transformers import GPT2Config, GPT2LMHeadModel

    options = {"n_embd": FEATURES, "n_layer": LAYERS, "n_head": HEADS, "n_positions": POSITIONS}
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, attn_implementation="sdpa", **options)
    ).eval()
    weights = np.load(folder / "weights.npz")
    model.load_state_dict({name: torch.tensor(weights[name]) for name in weights}, strict=False)
    batches = torch.tensor(np.load(folder / "data.npz")["ids"]).split(AT_ONCE)
    halves = [part for layer in model.transformer.h for part in (layer.attn, layer.mlp)]

    def nothing(_, __, output):
        if isinstance(output, tuple):
            return torch.zeros_like(output[0]), *output[1:]
        return torch.zeros_like(output)

    def keep(states, _, inputs):
        states.append(inputs[0])

    @torch.inference_mode()
    def forward():
        return torch.stack([model(ids, use_cache=False).logits.mean(0) for ids in batches])

    def loss_of(ids):
        logits = model(ids, use_cache=False).logits
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    @torch.inference_mode()
    def losses():
        found = []
        for half in halves:
            hook = half.register_forward_hook(nothing)
            found.append(torch.stack([loss_of(ids) for ids in batches]).mean())
            hook.remove()
        return torch.stack(found)

    @torch.inference_mode()
    def lens():
        rows = []
        for ids in batches:
            states, hooks = [], []
            norms = [norm for layer in model.transformer.h for norm in (layer.ln_1, layer.ln_2)]
            for norm in (*norms, model.transformer.ln_f):
                hooks.append(norm.register_forward_pre_hook(functools.partial(keep, states)))
            model.transformer(ids, use_cache=False)
            for hook in hooks:
                hook.remove()
            found, answers = [], []
            for state in states:
                logits = model.lm_head(model.transformer.ln_f(state))[:, :-1]
                logs = logits.log_softmax(-1)
                own = -logs.gather(-1, ids[:, 1:, None]).mean()
                entropy = -(logs.exp() * logs).sum(-1).mean()
                found.append(torch.stack([own, entropy]))
                answers.append(logits.argmax(-1))
            agree = torch.stack([(one == answers[-1]).float().mean() for one in answers])
            rows.append(torch.cat([torch.stack(found), agree[:, None]], -1))
        return torch.stack(rows).mean(0).T

    return {"loss without each half-layer": losses, "lens": lens, FORWARD: forward}


def serve(kind, folder, blocks, dtype):
    """Calls the function named on every line of stdin; prints its seconds and its numbers."""
    functions = {"resnet": of_resnet, "gpt2": of_gpt2}[kind](pathlib.Path(folder), blocks, dtype)
    for line in sys.stdin:
        begun = time.perf_counter()
        numbers = functions[line.strip()]()
        print(json.dumps([time.perf_counter() - begun, numbers.tolist()]), flush=True)


class ByHand:
    """The process of PyTorch."""

    def __init__(self, python, kind, folder, blocks=0, dtype="float32"):
        # benchmarks/transformers.py is not the package.
        command = [python, "-P", __file__, "--serve", kind, str(folder), str(blocks), dtype]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, name):
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


# With tfresidual


def resnet(blocks, dtype, count, folder, rng):
    """Writes weights and data; returns the functions that are timed, by name."""
    import keras
    import tensorflow as tf
    from metrics_pass import settle

    import tfresidual as tfr
    from tfresidual import networks, probes

    keras.utils.set_random_seed(0)
    net = networks.resnet(2 * blocks + 2, dtype=dtype)
    images = rng.normal(size=(count, 32, 32, 3)).astype("float32")
    labels = rng.integers(0, 10, count)
    settle(net, tf.constant(images[:BATCH]))
    np.savez(folder / "weights.npz", **{w.path: w.numpy() for w in net.weights})
    np.savez(folder / "data.npz", images=images, labels=labels)
    chain = tfr.chain(net)
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(BATCH)
    data = data.cache()

    def metrics():
        frame = probes.block_metrics(chain, data).dropna(subset=["cosine_loss"])
        return frame[["cosine_loss", "l2_ratio"]].to_numpy()

    def errors():
        return probes.drop_blocks(chain, data)["error"].dropna().to_numpy()

    network = tf.function(lambda images: tf.cast(net(images, training=False), "float32"))

    def forward():
        return np.concatenate([network(images) for images, _ in data])

    return {
        "cosine and l2 ratio": metrics,
        "error without each block": errors,
        FORWARD: forward,
    }


def gpt2(count, folder, rng):
    """Writes weights and data; returns the functions that are timed, by name."""
    import keras
    import keras_hub
    import tensorflow as tf

    import tfresidual as tfr
    from tfresidual import probes

    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=WORDS,
        num_layers=LAYERS,
        num_heads=HEADS,
        hidden_dim=FEATURES,
        intermediate_dim=4 * FEATURES,
        max_sequence_length=POSITIONS,
        dropout=0.0,
    )
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.02 + weight.path.endswith("gamma"))
    ids = rng.integers(0, WORDS, (count, POSITIONS))
    np.savez(folder / "weights.npz", **names_of_torch(backbone))
    np.savez(folder / "data.npz", ids=ids)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, sampler="greedy")
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    # The last position has no next word.
    labels = np.concatenate([ids[:, 1:], np.full_like(ids[:, :1], -1)], axis=1)
    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(AT_ONCE).cache()
    chain = tfr.chain(model, inputs={name: value[:AT_ONCE] for name, value in inputs.items()})

    def losses(chain=chain):
        return probes.drop_blocks(chain, data)["cross_entropy"].to_numpy()

    def lens(chain=chain):
        frame = probes.lens(chain, data)
        return frame[["cross_entropy", "entropy", "agreement"]].to_numpy().T

    alone = dataclasses.replace(chain, reference=None)

    network = tf.function(lambda inputs: tf.reduce_mean(model(inputs, training=False), 0))

    def forward():
        return np.stack([network(inputs) for inputs, _ in data])

    return {
        "loss without each half-layer": losses,
        f"loss without each half-layer{NOT_COMPARED}": functools.partial(losses, alone),
        "lens": lens,
        f"lens{NOT_COMPARED}": functools.partial(lens, alone),
        FORWARD: forward,
    }


def names_of_torch(backbone):
    """Returns the weights of keras-hub's GPT-2 under the names of Hugging Face's."""
    found = {
        "transformer.wte.weight": backbone.token_embedding.embeddings,
        "transformer.wpe.weight": backbone.position_embedding.position_embeddings,
        "transformer.ln_f.weight": backbone.layer_norm.gamma,
        "transformer.ln_f.bias": backbone.layer_norm.beta,
    }
    for index, layer in enumerate(backbone.transformer_layers):
        attention, name = layer._self_attention_layer, f"transformer.h.{index}"
        dense = (attention._query_dense, attention._key_dense, attention._value_dense)
        found |= {
            f"{name}.ln_1.weight": layer._self_attention_layer_norm.gamma,
            f"{name}.ln_1.bias": layer._self_attention_layer_norm.beta,
            f"{name}.ln_2.weight": layer._feedforward_layer_norm.gamma,
            f"{name}.ln_2.bias": layer._feedforward_layer_norm.beta,
            f"{name}.attn.c_attn.weight": np.concatenate(
                [np.reshape(one.kernel, (FEATURES, FEATURES)) for one in dense], axis=1
            ),
            f"{name}.attn.c_attn.bias": np.concatenate([np.ravel(one.bias) for one in dense]),
            f"{name}.attn.c_proj.weight": np.reshape(
                attention._output_dense.kernel, (FEATURES, FEATURES)
            ),
            f"{name}.attn.c_proj.bias": attention._output_dense.bias,
            f"{name}.mlp.c_fc.weight": layer._feedforward_intermediate_dense.kernel,
            f"{name}.mlp.c_fc.bias": layer._feedforward_intermediate_dense.bias,
            f"{name}.mlp.c_proj.weight": layer._feedforward_output_dense.kernel,
            f"{name}.mlp.c_proj.bias": layer._feedforward_output_dense.bias,
        }
    return {name: np.asarray(value) for name, value in found.items()}


def compared_with(by_hand, functions, setting, arguments, agreement=AGREEMENT):
    """Yields the rows of functions that are timed here and in the process of PyTorch."""
    from results import compared

    for name, function in functions.items():
        if arguments.only and name.split()[0].strip(",") not in arguments.only:
            continue
        asked = name.removesuffix(NOT_COMPARED)
        _, expected = by_hand(asked)
        found = function()
        difference = np.abs(np.sort(found, axis=None) - np.sort(expected, axis=None)).max()
        if not difference <= agreement:
            raise SystemExit(f"{name}, {setting}: the numbers differ by up to {difference:.2g}")
        theirs, ours = [], []
        for _ in range(arguments.rounds):
            theirs.append(by_hand(asked)[0])
            begun = time.perf_counter()
            function()
            ours.append(time.perf_counter() - begun)
        whose = "PyTorch / TensorFlow" if name == FORWARD else "by hand / tfresidual"
        yield compared(
            f"{name}, {whose}",
            setting,
            theirs,
            ours,
            f"the numbers differ by up to {difference:.1g}",
        )


def environment():
    """Returns what the environment sets otherwise than the defaults, as the end of a setting."""
    is_off = os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0"
    is_one = os.environ.get("TF_NUM_INTRAOP_THREADS") == "1"
    return ", without oneDNN" * is_off + ", one thread" * is_one


def measure(arguments):
    import keras
    from results import NOT_MEASURED, Row, without_bfloat16

    has_torch = [arguments.python, "-c", "import torch, transformers"]
    if subprocess.run(has_torch, stderr=subprocess.DEVNULL, check=False).returncode:
        yield Row("by hand / tfresidual", note=f"{NOT_MEASURED}: no torch and transformers")
        return
    settings = itertools.product(arguments.dtypes, arguments.images, arguments.blocks)
    for dtype, images, blocks in settings:
        setting = f"{blocks} blocks, {dtype}, {images:,} images{environment()}"
        if reason := without_bfloat16(dtype):
            yield Row("by hand / tfresidual", setting, note=reason)
            continue
        with tempfile.TemporaryDirectory() as folder:
            rng = np.random.default_rng(0)
            functions = resnet(blocks, dtype, images, pathlib.Path(folder), rng)
            by_hand = ByHand(arguments.python, "resnet", folder, blocks, dtype)
            agreement = AGREEMENT if dtype == "float32" else 0.02
            yield from compared_with(by_hand, functions, setting, arguments, agreement)
            by_hand.close()
        keras.backend.clear_session()
    for count in arguments.sequences:
        setting = f"GPT-2 of {LAYERS} layers, {count} sequences{environment()}"
        with tempfile.TemporaryDirectory() as folder:
            functions = gpt2(count, pathlib.Path(folder), np.random.default_rng(0))
            by_hand = ByHand(arguments.python, "gpt2", folder)
            yield from compared_with(by_hand, functions, setting, arguments)
            by_hand.close()


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, nargs="*", default=[9, 27])
    parser.add_argument("--images", type=int, nargs="+", default=[512])
    parser.add_argument("--sequences", type=int, nargs="*", default=[64])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        from results import run

        run(measure, add_arguments)

"""What differs between the backends of Keras: TensorFlow, JAX and PyTorch."""

import functools
import operator

import keras

BACKEND = keras.config.backend()


def compiled(*static):
    """Decorator: compiles a function of tensors once for every shape, where the backend can.

    On TensorFlow it is not inlined, because a graph may call it many times. `static` are the names
    of the last arguments, which are hashable and given by place.
    """

    def decorator(function):
        if BACKEND == "tensorflow":
            import tensorflow as tf

            # A function for each of them, since TensorFlow compares objects by reference only.
            @functools.cache
            def function_of(*values):
                return tf.function(
                    lambda *tensors: function(*tensors, *values),
                    autograph=False,
                    experimental_attributes={"_noinline": True},
                )

            @functools.wraps(function)
            def call(*arguments):
                count = len(arguments) - len(static)
                return function_of(*arguments[count:])(*arguments[:count])

            return call
        if BACKEND == "jax":
            import jax

            return jax.jit(function, static_argnames=static)
        return function

    return decorator


def kernels():
    """Returns whose kernels convolutions run on, as a word; they round in different ways."""
    if BACKEND != "tensorflow":
        return BACKEND
    from tensorflow.python.util import _pywrap_util_port

    # TensorFlow has no public function for what TF_ENABLE_ONEDNN_OPTS and the processor decide.
    return "oneDNN" if _pywrap_util_port.IsMklEnabled() else "TensorFlow"


def is_traced(variable):
    """Returns whether a variable has no value yet because a graph is being built."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return not tf.executing_eagerly()
    if BACKEND == "jax":
        import jax

        return isinstance(keras.ops.convert_to_tensor(variable), jax.core.Tracer)
    return False


def known_int(value):
    """Returns a value as a Python int, or as it is if it is not an int that is known."""
    if isinstance(value, bool):
        return value
    if BACKEND == "tensorflow":
        import tensorflow as tf

        if tf.is_tensor(value):
            known = tf.get_static_value(value)
            value = value if known is None else known
    if BACKEND == "jax":
        import jax

        if isinstance(value, jax.core.Tracer):
            return value
    try:
        return operator.index(value)
    # PyTorch's meta tensors have no value.
    except (TypeError, ValueError, RuntimeError):
        return value


def stored_or_new(are_valid, stored, new, store):
    """Returns stored values if they are valid, and otherwise new ones, which are then stored.

    Args:
        are_valid: bool tensor.
        stored: function that returns a list of tensors.
        new: function that returns another list of tensors, of the same shapes.
        store: function of the new tensors that assigns variables, where JAX can assign them, and
            returns the tensors.
    """
    if BACKEND == "jax":
        import jax

        if isinstance(are_valid, jax.core.Tracer):
            # A branch of a compiled function has no side effects.
            values = keras.ops.cond(are_valid, stored, new)
            # What is traced may only be assigned to variables of the same trace, as in `predict`:
            # not in a function of the user's that knows nothing of them, or in a loop.
            traces = [getattr(value, "_trace", None) for value in stored()]
            is_of_trace = all(trace is getattr(are_valid, "_trace", 0) for trace in traces)
            return store(values) if is_of_trace else values
        return stored() if are_valid else store(new())
    return keras.ops.cond(are_valid, stored, lambda: store(new()))


def count_of_gpus():
    """Returns the number of GPUs that the backend can compute on."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return len(tf.config.list_physical_devices("GPU"))
    if BACKEND == "jax":
        import jax

        return sum(device.platform == "gpu" for device in jax.local_devices())
    if BACKEND == "torch":
        import torch

        return torch.cuda.device_count()
    return 0


def accelerator_memory():
    """Returns how many bytes are free on the GPU or TPU of JAX or PyTorch, otherwise 0."""
    if BACKEND == "jax":
        import jax

        device = jax.local_devices()[0]
        # Batches of a distributed training are split among its devices.
        if device.platform == "cpu" or keras.distribution.distribution() is not None:
            return 0
        memory = device.memory_stats() or {}
        return max(0, memory.get("bytes_limit", 0) - memory.get("bytes_in_use", 0))
    if BACKEND == "torch":
        import torch

        return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    return 0


def random_state():
    """Returns the state of random generators that belong to no network, or `None` without any.

    PyTorch has some: Keras draws its dropout from them. Other backends keep the states of all
    generators as variables of the network.
    """
    if BACKEND != "torch":
        return None
    import torch

    states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [state.tolist() for state in (torch.get_rng_state(), *states)]


def set_random_state(states):
    """Sets the state of random generators to what `random_state` returned."""
    import torch

    cpu, *others = (torch.tensor(state, dtype=torch.uint8, device="cpu") for state in states)
    torch.set_rng_state(cpu)
    # The training may resume on a machine with other GPUs.
    for device, state in zip(range(torch.cuda.device_count()), others, strict=False):
        torch.cuda.set_rng_state(state, device)

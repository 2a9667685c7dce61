"""Whether callbacks stand where they see what others publish."""

import gc
import warnings

import keras

# Those that write down all that is in the logs.
LOGGERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def warn_of_earlier(callback, kind, keys):
    """Warns of callbacks that read the logs before another one publishes in them.

    Args:
        callback: a `keras.callbacks.Callback` that publishes, in its training.
        kind: the class of callbacks that publish. Of several, the first one after a logger warns.
        keys: what the callback publishes.
    """
    name, before = type(callback).__name__, callbacks_before(callback)
    publishers = [place for place, earlier in enumerate(before) if isinstance(earlier, kind)]
    for place, earlier in enumerate(before):
        monitored = getattr(earlier, "monitor", None)
        if isinstance(earlier, LOGGERS) and all(place > other for other in publishers):
            what = f"writes down nothing of what {name} publishes"
        elif isinstance(monitored, str) and monitored in keys:
            what = f"does not see {monitored!r}, which {name} publishes"
        else:
            continue
        warnings.warn(
            f"{type(earlier).__name__} stands before {name} in the list of callbacks, so that it "
            f"{what}. Move it after the callbacks that run probes.",
            stacklevel=2,
        )


def callbacks_before(callback):
    """The callbacks that stand before one in the list of its training.

    Keras tells a callback nothing about the others. But it gives all of a training the same dict
    of parameters, which their list holds, too: so the garbage collector can say which list it is.
    """
    if callback.params is None:
        return []
    for one in gc.get_objects():
        is_list = issubclass(type(one), keras.callbacks.CallbackList)
        if is_list and getattr(one, "params", None) is callback.params:
            callbacks = list(one.callbacks)
            return callbacks[: callbacks.index(callback)] if callback in callbacks else []
    return []

"""Checks that callbacks are placed after the callbacks whose logs they read."""

import gc
import warnings

import keras

# Callbacks that record everything in the logs.
LOGGERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def warn_of_earlier(callback, kind, keys):
    """Warns about callbacks that read the logs before `callback` publishes in them.

    Args:
        callback: a `keras.callbacks.Callback` that publishes in the logs and is being trained
            with.
        kind: the class of callbacks that publish. If several of them follow a logger, only the
            first one warns.
        keys: the keys that the callback publishes.
    """
    name, before = type(callback).__name__, callbacks_before(callback)
    publishers = [place for place, earlier in enumerate(before) if isinstance(earlier, kind)]
    for place, earlier in enumerate(before):
        monitored = getattr(earlier, "monitor", None)
        if isinstance(earlier, LOGGERS) and all(place > other for other in publishers):
            what = f"records nothing that {name} publishes"
        elif isinstance(monitored, str) and monitored in keys:
            what = f"does not see {monitored!r}, which {name} publishes"
        else:
            continue
        warnings.warn(
            f"{type(earlier).__name__} comes before {name} in the list of callbacks, so it "
            f"{what}. Move it after the callbacks that run probes.",
            stacklevel=2,
        )


def callbacks_before(callback):
    """Returns the callbacks that come before `callback` in the list passed to `fit`.

    Keras gives a callback no access to the others. But all callbacks of one training run share
    one dict of parameters, which their `CallbackList` also holds, so the list can be found among
    the objects of the garbage collector.
    """
    if callback.params is None:
        return []
    for one in gc.get_objects():
        is_list = issubclass(type(one), keras.callbacks.CallbackList)
        if is_list and getattr(one, "params", None) is callback.params:
            callbacks = list(one.callbacks)
            return callbacks[: callbacks.index(callback)] if callback in callbacks else []
    return []

"""Checks that callbacks are placed after the callbacks whose logs they read."""

import inspect

import keras

from tfresidual.definitions.warning import warn

# Callbacks that record everything in the logs.
LOGGERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def warn_of_earlier(callback, kind, keys):
    """Warns about callbacks that read the logs before `callback` publishes `keys` in them.

    Of several callbacks of the class `kind` that follow a logger, only the first one warns.
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
        warn(
            f"{type(earlier).__name__} comes before {name} in the list of callbacks, so it "
            f"{what}. Move it after the callbacks that run probes."
        )


def callbacks_before(callback):
    """Returns the callbacks that come before `callback` in the list passed to `fit`.

    Keras gives a callback no access to the others, but a method of their `CallbackList` calls it.
    """
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, keras.callbacks.CallbackList) and callback in owner.callbacks:
            return owner.callbacks[: owner.callbacks.index(callback)]
        frame = frame.f_back
    return []

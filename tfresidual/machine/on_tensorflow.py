"""Imported by the parts that run on TensorFlow alone; on other backends the import fails."""

from tfresidual.machine.backends import BACKEND

if BACKEND != "tensorflow":
    raise ImportError(
        "Probes, callbacks, routes, the depth search and SavedModels of tfresidual run on "
        "TensorFlow; layers, networks and training run on every backend of Keras. Save the network "
        "with `network.save('network.keras')` and open the file in a process with "
        f"KERAS_BACKEND=tensorflow. Received: KERAS_BACKEND={BACKEND}"
    )

"""SavedModels that can be probed without the code of the network: format, writer and reader."""

import tfresidual.machine.on_tensorflow  # noqa: F401
from tfresidual.sources.saved_model.reader import saved_model_chain
from tfresidual.sources.saved_model.writer import write

__all__ = ["saved_model_chain", "write"]

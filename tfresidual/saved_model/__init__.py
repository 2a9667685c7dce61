"""SavedModels that can be probed without their code: the format, its writer and its reader."""

from tfresidual.saved_model.reader import saved_model_chain
from tfresidual.saved_model.writer import write

__all__ = ["saved_model_chain", "write"]

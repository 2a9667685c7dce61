"""The jobs of the command line, as functions."""

from tfresidual.jobs import depth_study, probing, run_folder, settings, study

__all__ = ["depth_study", "probing", "run_folder", "settings", "study"]

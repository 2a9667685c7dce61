"""What the command line does, as functions."""

from tfresidual.jobs import depth_study, probing, run_folder, settings, study

__all__ = ["depth_study", "probing", "run_folder", "settings", "study"]

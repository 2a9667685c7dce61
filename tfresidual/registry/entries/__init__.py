"""The entries of the registry: one file per probe, named after the probe."""

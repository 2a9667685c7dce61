"""What is said before anything runs: metrics, probes, settings, arguments and types."""

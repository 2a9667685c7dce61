"""What is declared before anything runs: metrics, probes, settings, arguments and types."""

"""What is known of each probe, one file per probe, named after it."""

"""What the published statements say of frames made by hand."""

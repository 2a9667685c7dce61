"""Second ways to every number: slow, plain, and sharing no code with the package."""

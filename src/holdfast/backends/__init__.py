"""Storage for versions: one module for each kind."""

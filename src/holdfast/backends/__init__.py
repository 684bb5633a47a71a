"""Where versions live: one module for each kind of place."""

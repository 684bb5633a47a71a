"""The engine: state as sorted columns. It gets its clock, randomness and storage from outside."""

"""The engine: state as sorted columns. Clock, randomness and storage are handed in."""

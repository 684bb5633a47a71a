"""What a processor of the user's gets: its rows, its handle and its state variables."""

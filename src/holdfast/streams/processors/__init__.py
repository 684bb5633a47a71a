"""What a user's processor gets: rows, a handle, and state variables."""

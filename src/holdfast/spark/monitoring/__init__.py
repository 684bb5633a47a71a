"""What can be seen of a running query: progress, listeners, metrics, the live line."""

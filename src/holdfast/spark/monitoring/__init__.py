"""What you can see of a running query: progress, listeners, metrics, the live line."""

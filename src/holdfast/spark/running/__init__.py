"""The running query: versions made, committed and delivered, and what ends it."""

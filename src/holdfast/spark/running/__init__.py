"""The running query: its start, the threads of its run, and its end."""

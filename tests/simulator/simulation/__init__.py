"""A stream's own code over simulated storage, threads, clock and Spark, driven by one seed."""

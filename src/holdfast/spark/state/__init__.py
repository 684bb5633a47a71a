"""A query's stored state: where it is, whether it is this query's, and tasks that run beside it."""

"""Where output goes: files, tables, the user's functions, and Spark's other sinks."""

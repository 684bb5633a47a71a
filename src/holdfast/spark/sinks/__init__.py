"""Where output goes: files, tables, functions of the user, and Spark's other sinks."""

"""Aggregate functions: a table of them, their partial columns, merged by Spark's arithmetic."""

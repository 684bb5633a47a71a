"""Runs PySpark's own test suites on Holdfast, read from a checkout of Spark and never copied."""

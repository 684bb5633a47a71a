"""Spark SQL's hash functions, computed without Spark."""

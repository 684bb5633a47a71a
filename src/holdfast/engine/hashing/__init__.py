"""Spark SQL's hash functions without Spark."""

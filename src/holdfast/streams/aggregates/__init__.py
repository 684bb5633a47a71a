"""Partial aggregates: grouped, merged and counted by Spark's arithmetic."""

"""Calls of each aggregate function, by its name; no two mean the same to Spark."""

from __future__ import annotations

CALLS: dict[str, tuple[str, ...]] = {
    "sum": ("sum(n)", "sum(i)", "sum(x)", "sum(d)"),
    "count": ("count(*)", "count(s)", "count(n, x, s)"),
    "regr_count": ("regr_count(n, x)",),
    "count_if": ("count_if(flag)",),
    "avg": ("avg(n)", "avg(x)", "avg(d)"),
    "min": ("min(n)", "min(x)", "min(d)", "min(s)"),
    "max": ("max(n)", "max(x)", "max(d)", "max(s)"),
    "bool_and": ("bool_and(flag)",),
    "bool_or": ("bool_or(flag)",),
    "bit_and": ("bit_and(n)", "bit_and(i)"),
    "bit_or": ("bit_or(n)", "bit_or(i)"),
    "bit_xor": ("bit_xor(n)", "bit_xor(i)"),
    "first": ("first(n)", "first(s, true)"),
    "any_value": ("any_value(i)", "any_value(d, true)"),
    "last": ("last(n)", "last(s, true)"),
    "variance": ("variance(n)", "variance(d)"),
    "var_pop": ("var_pop(n)", "var_pop(x)"),
    "stddev": ("stddev(n)", "stddev(i)"),
    "stddev_pop": ("stddev_pop(n)", "stddev_pop(d)"),
    "collect_list": ("collect_list(n)", "collect_list(s)"),
    "collect_set": ("collect_set(n)", "collect_set(s)"),
    "max_by": ("max_by(n, u)", "max_by(s, u)"),
    "min_by": ("min_by(n, u)", "min_by(d, u)"),
    "approx_count_distinct": ("approx_count_distinct(n)", "approx_count_distinct(s, 0.02)"),
}
OUTSIDE = ("median(n)", "percentile(n, 0.5)", "mode(n)")

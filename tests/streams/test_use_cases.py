"""The processors of the examples, run by the test driver: the state after every transaction."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark")
import shopping_totals
import weekly_purchases
from holdfast.testing import StateTestDriver
from weekly_spending import TRANSACTIONS


def test_a_users_total_grows_with_each_transaction() -> None:
    driver = StateTestDriver(
        shopping_totals.ShoppingTotal(), "user", shopping_totals.SCHEMA, shopping_totals.TOTALS
    )
    held = []
    for transaction in shopping_totals.TRANSACTIONS:
        driver.push([transaction])
        held.append({user: total for (user,), (total,) in driver.state("total").items()})
    assert held == [
        {"Sankar": 200},
        {"Sankar": 200, "Jade": 800},
        {"Sankar": 500, "Jade": 800},
        {"Sankar": 500, "Jade": 800, "Kun": 100},
    ]


def test_purchases_leave_one_by_one_seven_days_behind_the_newest_date() -> None:
    driver = StateTestDriver(
        weekly_purchases.WeeklyPurchases(),
        "user",
        "user string, shopping long, eventtime timestamp",
        weekly_purchases.SPENDING,
        time_mode="EventTime",
        watermark=("eventtime", 3 * weekly_purchases.DAY_MS),
    )

    def push(transaction: dict[str, Any]) -> dict[str, Any]:
        date = datetime.strptime(transaction["date"], "%d-%m-%Y").replace(tzinfo=UTC)
        driver.push([(transaction["user"], transaction["shopping"], date)])
        held = driver.state("spending").items()
        return {user: (total, f"{last:%d-%m}") for (user,), (total, last) in held}

    assert [push(transaction) for transaction in TRANSACTIONS] == [
        {"Sankar": (200, "20-04")},
        {"Sankar": (200, "20-04"), "Jade": (800, "18-04")},
        {"Sankar": (500, "25-04")},
        {"Sankar": (300, "25-04"), "Kun": (100, "28-04")},
    ]
    assert sorted(driver.state("purchases")) == [("Kun",), ("Sankar",)]
    assert set(driver.timers()) == {("Kun",), ("Sankar",)}

"""The processors of the examples, run by the test driver: the state after every transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")
import anomaly_detector
import fraud_detection
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


def test_a_card_is_blocked_at_its_third_alert_of_a_day_and_not_for_slow_shoppers() -> None:
    driver = StateTestDriver(
        fraud_detection.FraudDetector(),
        "card",
        fraud_detection.SCHEMA,
        fraud_detection.ALERTS,
        time_mode="EventTime",
        watermark=("ts", 10_000),
    )
    start = fraud_detection.START.replace(tzinfo=UTC)

    def push(second: int, card: str, amount: float) -> list[tuple[str, str]]:
        given = driver.push([(card, amount, start + timedelta(seconds=second))])
        return [(row.card, row.what) for row in given]

    told = [found for purchase in fraud_detection.PURCHASES for found in push(*purchase)]
    assert told == [("4000", "alert"), ("4000", "alert"), ("4000", "blocked")]
    assert driver.state("suspect") == {}, "timers ended what was suspected"
    assert driver.state("alerts") == {("4000",): (3,)}
    a_day_later = 310 + 24 * 60 * 60
    assert push(a_day_later + 11, "5100", 5) == []
    assert driver.state("alerts") == {}
    push(a_day_later + 20, "4000", 0.5)
    assert push(a_day_later + 30, "4000", 600) == [("4000", "alert")]


def test_a_sensor_is_told_when_it_is_odd_or_silent_and_faults_are_forgotten_after_an_hour() -> None:
    driver = StateTestDriver(
        anomaly_detector.AnomalyDetector(),
        "sensor",
        "sensor string, reading double, at timestamp, at_ms long",
        anomaly_detector.ANOMALIES,
        time_mode="EventTime",
        watermark=("at", "1 minute"),
    )
    start = datetime(2024, 5, 1, 12, tzinfo=UTC)

    def push(*readings: tuple[int, str, float]) -> list[tuple[Any, ...]]:
        rows = [
            (sensor, reading, at, int(at.timestamp() * 1000))
            for minute, sensor, reading in readings
            for at in [start + timedelta(minutes=minute)]
        ]
        return sorted(tuple(row) for row in driver.push(rows))

    assert [push(*batch) for batch in anomaly_detector.READINGS] == [
        [],
        [("door", "silent", 1, "20"), ("oven", "high", 1, "181 180 260")],
        [("oven", "high", 2, "180 260 270")],
    ]
    assert driver.state("normal")[("oven",)] == (6, 180.5, 1.5), "odd readings are not normal"
    assert driver.state("last") == {("oven",): [(260.0,), (270.0,), (181.0,)]}
    assert driver.state("faults") == {
        ("door",): {("silent",): (1,)},
        ("oven",): {("high",): (2,)},
    }
    assert list(driver.timers()) == [("oven",)], "a timer that has fired is gone"
    # Its last fault is more than an hour ago, so the count starts again.
    assert push((80, "door", 19.0)) == [("oven", "silent", 1, "260 270 181")]
    assert driver.state("faults") == {("oven",): {("silent",): (1,)}}

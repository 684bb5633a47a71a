"""The driver's half of the stateful operators; `streams.tasks` has the other half."""

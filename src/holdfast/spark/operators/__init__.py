"""The stateful operators on the driver; `streams.tasks` has the half that runs in tasks."""

"""What a query is made of: its sources, flows and stages, before and while it runs."""

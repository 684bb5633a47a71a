"""Views in Cassandra."""

"""The versions of a query: opened, computed, committed, delivered, merged."""

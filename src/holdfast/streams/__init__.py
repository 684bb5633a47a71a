"""What stateful operators compute, on Arrow columns and without a JVM."""

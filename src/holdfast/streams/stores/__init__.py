"""The stores of tasks: what is asked of them, and who keeps them open."""

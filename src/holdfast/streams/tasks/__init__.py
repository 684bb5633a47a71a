"""What runs where the state is; `spark.operators` has the half that runs on the driver."""

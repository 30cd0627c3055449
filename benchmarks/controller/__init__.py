"""A controller's work: the rows, the runs, and the report of `bench_controller.py`."""

"""The data pipeline's jobs: each is a PySpark program of one page that may be copied and changed.

``segstore pipeline`` runs them; so does any program that has a Spark session with the data source
``pravega`` registered.
"""

"""Programs of others, found, started and stopped: ZooKeeper, bookies, HDFS, S3, Kafka, Pulsar, a
browser, the original.

Deployments on one machine, tests and benchmarks use them. Nothing here knows who asks.
"""

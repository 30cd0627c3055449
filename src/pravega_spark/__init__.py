"""The Spark data source ``pravega``: streams as DataFrames, in batches and as streaming queries.

from pravega_spark import PravegaDataSource

spark.dataSource.register(PravegaDataSource)
frame = spark.read.format("pravega").options(scope="demo", stream="greetings").load()
"""

from pravega_spark.interpreter import use_own_interpreter
from pravega_spark.source import PravegaDataSource

__all__ = ["PravegaDataSource"]

use_own_interpreter()

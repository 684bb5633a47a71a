"""What Spark and PySpark do not promise: attributes that begin with an underscore, objects of the
JVM, classes of Catalyst. A test holds that no other module of the package touches them.

`check` refuses a Spark that lacks what is called, by its version, before a stream is made. `jvm`
has frames, plans and queries, `analysis` takes aggregations apart, `lineage` says what columns are
made of, `hadoop` reaches file systems, `catalog` tables, and `located_java` tells Spark where tasks
should run.
"""

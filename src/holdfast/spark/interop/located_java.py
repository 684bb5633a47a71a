"""The one piece of Java: an RDD with preferred locations, which PySpark has no way to give.

Janino, which Spark ships for its generated code, compiles it when the first query of an
application starts on a cluster; executors get it as a jar.
"""

from __future__ import annotations

import logging
import threading
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.coordinator.instances import task_location
from holdfast.spark.interop.classes import java_class
from holdfast.spark.interop.model import EXECUTOR_PROPERTY
from holdfast.spark.interop.scala import scala_list

log = logging.getLogger(__name__)
_CLASS = "holdfast.LocatedRDD"
_SOURCE = f"""
package holdfast;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import org.apache.spark.Partition;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.storage.BlockManager;
import org.apache.spark.storage.BlockManagerId;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

public class LocatedRDD extends RDD {{
  private final String[] locations;

  public LocatedRDD(RDD parent, String locations) {{
    super(parent, parent.elementClassTag());
    this.locations = locations.split("\\n", -1);
  }}

  public Partition[] getPartitions() {{
    return firstParent(elementClassTag()).partitions();
  }}

  public Iterator compute(Partition part, TaskContext context) {{
    context.getLocalProperties().setProperty("{EXECUTOR_PROPERTY}", executor());
    return firstParent(elementClassTag()).iterator(part, context);
  }}

  public Seq getPreferredLocations(Partition part) {{
    String wanted = locations[part.index()];
    String[] all = wanted.isEmpty() ? new String[0] : new String[] {{wanted}};
    return scala.collection.immutable.ArraySeq$.MODULE$.unsafeWrapArray(all);
  }}

  private static String executor() {{
    Object env = call(SparkEnv.class, "get", SparkEnv.class, null);
    Object id = call(SparkEnv.class, "executorId", String.class, env);
    Object manager = call(SparkEnv.class, "blockManager", BlockManager.class, env);
    Object place = call(BlockManager.class, "blockManagerId", BlockManagerId.class, manager);
    return id + " " + call(BlockManagerId.class, "host", String.class, place);
  }}

  // A plain call, or reflection, would look at every method of SparkEnv: some name classes that
  // are not there unless Spark Connect is.
  private static Object call(Class of, String name, Class result, Object target) {{
    MethodHandles.Lookup lookup = MethodHandles.publicLookup();
    MethodType type = MethodType.methodType(result);
    try {{
      return target == null
          ? lookup.findStatic(of, name, type).invokeWithArguments(new Object[0])
          : lookup.findVirtual(of, name, type).invokeWithArguments(new Object[] {{target}});
    }} catch (Throwable error) {{
      throw new IllegalStateException(error);
    }}
  }}
}}
"""
_lock = threading.Lock()
_prepared: tuple[str, LocatedJava | None] = ("", None)


@dataclass(frozen=True)
class LocatedJava:
    """The compiled class, known to the driver and to executors."""

    session: SparkSession
    constructor: Any
    _hosts: dict[str, str] = field(default_factory=dict)
    """Of every executor seen so far, by its id."""

    def wrap(self, java_rdd: Any, locations: list[str | None]) -> Any:
        """A Java RDD whose partitions prefer these locations, one or none each."""
        gateway = self.session.sparkContext._gateway
        assert gateway is not None
        arguments = gateway.new_array(java_class(self.session, "java.lang.Object"), 2)
        arguments[0], arguments[1] = java_rdd, "\n".join(place or "" for place in locations)
        return self.constructor.newInstance(arguments)

    def numbers(self, session: SparkSession, locations: list[str | None]) -> DataFrame:
        """As `session.range`: the numbers of some partitions, each in its own, at these places."""
        count = len(locations)
        plain = session.range(0, count, 1, count)._jdf
        rows = self.wrap(plain.queryExecution().toRdd(), locations)
        java = session._jsparkSession.internalCreateDataFrame(rows, plain.schema(), False)
        return DataFrame(java, session)

    def executors(self) -> list[str]:
        """The executors that are alive, as task locations."""
        context = self.session.sparkContext._jsc.sc()
        alive = str(context.getExecutorIds().mkString(",")).split(",")
        if not set(alive) <= {"", *self._hosts}:
            for each in scala_list(context.statusStore().executorList(True)):
                host = str(each.hostPort() or "").rpartition(":")[0]
                if host:  # Spark hears of a task in a new executor before it hears of the executor
                    self._hosts[str(each.id())] = host
        return [task_location(self._hosts[each], each) for each in alive if each in self._hosts]


def prepared(session: SparkSession) -> LocatedJava | None:
    """The class of this application, made at the first call; None, and one warning, where that
    does not work.
    """
    global _prepared
    application = str(session.sparkContext.applicationId)
    with _lock:
        if _prepared[0] != application:
            _prepared = (application, _made(session))
        return _prepared[1]


def _made(session: SparkSession) -> LocatedJava | None:
    try:
        made = LocatedJava(session, _constructor(session))
        made.executors()
        made.numbers(session, [None])  # what is missing is found out here, not in a batch
        return made
    except Exception as error:
        log.warning(
            "Tasks run without preferred locations: Spark %s did not take the class for them "
            "(%s). spark.holdfast.locality=off leaves it out.",
            session.version,
            str(getattr(error, "java_exception", error)).partition("\n")[0],
        )
        return None


def _constructor(session: SparkSession) -> Any:
    context = session.sparkContext
    compiler = java_class(session, "org.codehaus.janino.SimpleCompiler")()
    compiler.cook(_SOURCE)
    jar = Path(context._temp_dir, "holdfast-located.jar")  # Spark removes the folder in the end
    with zipfile.ZipFile(jar, "w") as file:
        for name, code in compiler.getBytecodes().items():
            file.writestr(name.replace(".", "/") + ".class", bytes(code))
    context._jsc.addJar(str(jar))
    loader = java_class(session, "java.lang.Thread").currentThread().getContextClassLoader()
    loader.addURL(java_class(session, "java.io.File")(str(jar)).toURI().toURL())
    return java_class(session, "java.lang.Class").forName(_CLASS, True, loader).getConstructors()[0]

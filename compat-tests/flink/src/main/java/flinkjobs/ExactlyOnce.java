package flinkjobs;

import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.connectors.flink.FlinkPravegaReader;
import io.pravega.connectors.flink.FlinkPravegaWriter;
import io.pravega.connectors.flink.PravegaWriterMode;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.restartstrategy.RestartStrategies;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.time.Time;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.JobManagerOptions;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.jobgraph.SavepointRestoreSettings;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.runtime.state.CheckpointListener;
import org.apache.flink.runtime.state.StateBackend;
import org.apache.flink.runtime.state.filesystem.FsStateBackend;
import org.apache.flink.streaming.api.CheckpointingMode;
import org.apache.flink.streaming.api.environment.CheckpointConfig.ExternalizedCheckpointCleanup;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * A job that reads a stream, changes each event, and writes it to another stream in transactions
 * that end with its checkpoints.
 *
 * <p>{@code fill} makes the streams and fills the source. {@code first} lets a task fail once, stops
 * the job with a savepoint, goes on from there and then waits to be killed. {@code last PATH} goes
 * on from a checkpoint until all is read, whatever happens to the server meanwhile; without a path
 * it begins the job.
 */
final class ExactlyOnce {
    static final String SOURCE = "source";
    static final String SINK = "sink";

    private static final int PARALLELISM = 2;
    private static final int CHECKPOINT_MILLIS = 1_000;
    private static final String GROUP = "flink-group";

    /** What tasks, in this JVM, tell the main thread. */
    private static final AtomicInteger COMPLETED_CHECKPOINTS = new AtomicInteger();

    private static final AtomicInteger FAILURES_WANTED = new AtomicInteger();

    private ExactlyOnce() {}

    @SuppressWarnings("try") // javac warns of a close() that may be interrupted
    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("fill")) {
            Streams.create(SOURCE, 3);
            Streams.create(SINK, 2);
            Streams.fill(SOURCE, Settings.number("events"), number -> "event " + number);
            System.exit(0);
        }
        try (MiniCluster cluster = startCluster()) {
            if (arguments[0].equals("first")) {
                runFirst(cluster);
            } else {
                runLast(cluster, arguments.length > 1 ? arguments[1] : null);
            }
        }
        System.exit(0);
    }

    private static void runFirst(MiniCluster cluster) throws Exception {
        FAILURES_WANTED.set(1);
        JobID job = submit(cluster, null);
        awaitCheckpoints(cluster, job, 2);
        while (FAILURES_WANTED.get() > 0) {
            Thread.sleep(50);
        }
        say("a task failed");
        awaitCheckpoints(cluster, job, 2);
        String savepoint =
                cluster.triggerSavepoint(job, Settings.text("directory") + "/savepoints", true)
                        .get(60, TimeUnit.SECONDS);
        while (cluster.getJobStatus(job).get() != JobStatus.CANCELED) {
            Thread.sleep(50);
        }
        say("stopped with savepoint " + savepoint);
        job = submit(cluster, savepoint);
        awaitCheckpoints(cluster, job, 3);
        say("to be killed");
        while (!cluster.getJobStatus(job).get().isTerminalState()) {
            Thread.sleep(50);
        }
        throw new IllegalStateException("the job ended by itself");
    }

    private static void runLast(MiniCluster cluster, String checkpoint) throws Exception {
        JobID job = submit(cluster, checkpoint);
        awaitCheckpoints(cluster, job, 2);
        say("resumed");
        try (ReaderGroupManager groups =
                        ReaderGroupManager.withScope(Settings.scope(), Streams.client());
                ReaderGroup group = groups.getReaderGroup(GROUP)) {
            while (group.getMetrics().unreadBytes() > 0) {
                Thread.sleep(200);
            }
        }
        say("all is read");
        // The first of these may have begun before the end was read, the second may wait to commit.
        awaitCheckpoints(cluster, job, 3);
        cluster.cancelJob(job).get();
        say("done");
    }

    private static MiniCluster startCluster() throws Exception {
        Configuration configuration = new Configuration();
        configuration.set(RestOptions.BIND_PORT, "0");
        configuration.set(RestOptions.BIND_ADDRESS, "127.0.0.1");
        configuration.set(JobManagerOptions.EXECUTION_FAILOVER_STRATEGY, "full");
        configuration.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, MemorySize.ofMebiBytes(64));
        configuration.set(TaskManagerOptions.NETWORK_MEMORY_MIN, MemorySize.ofMebiBytes(32));
        configuration.set(TaskManagerOptions.NETWORK_MEMORY_MAX, MemorySize.ofMebiBytes(32));
        MiniCluster cluster =
                new MiniCluster(
                        new MiniClusterConfiguration.Builder()
                                .setConfiguration(configuration)
                                .setNumTaskManagers(1)
                                .setNumSlotsPerTaskManager(PARALLELISM)
                                .build());
        cluster.start();
        return cluster;
    }

    private static JobID submit(MiniCluster cluster, String from) throws Exception {
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(PARALLELISM);
        environment.enableCheckpointing(CHECKPOINT_MILLIS, CheckpointingMode.EXACTLY_ONCE);
        environment.getCheckpointConfig().setCheckpointTimeout(5_000);
        environment.getCheckpointConfig().setTolerableCheckpointFailureNumber(100);
        environment
                .getCheckpointConfig()
                .enableExternalizedCheckpoints(ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION);
        StateBackend backend =
                new FsStateBackend(Path.of(Settings.text("directory"), "checkpoints").toUri());
        environment.setStateBackend(backend);
        environment.setRestartStrategy(
                RestartStrategies.fixedDelayRestart(1_000, Time.milliseconds(500)));
        environment
                .addSource(
                        FlinkPravegaReader.<String>builder()
                                .withPravegaConfig(Settings.pravega())
                                .forStream(SOURCE)
                                .withReaderGroupName(GROUP)
                                .withEventReadTimeout(Time.milliseconds(200))
                                .withReaderGroupRefreshTime(Time.milliseconds(500))
                                .withDeserializationSchema(new SimpleStringSchema())
                                .uid("reader")
                                .build())
                .uid("source")
                .map(new Change(Settings.number("microseconds")))
                .uid("map")
                .addSink(
                        FlinkPravegaWriter.<String>builder()
                                .withPravegaConfig(Settings.pravega())
                                .forStream(SINK)
                                .withEventRouter(event -> event)
                                .withWriterMode(PravegaWriterMode.EXACTLY_ONCE)
                                .withTxnLeaseRenewalPeriod(Time.seconds(110))
                                .withSerializationSchema(new SimpleStringSchema())
                                .build())
                .uid("sink");
        JobGraph graph = environment.getStreamGraph("copy").getJobGraph();
        if (from != null) {
            graph.setSavepointRestoreSettings(SavepointRestoreSettings.forPath(from));
        }
        return cluster.submitJob(graph).get(60, TimeUnit.SECONDS).getJobID();
    }

    private static void awaitCheckpoints(MiniCluster cluster, JobID job, int count)
            throws Exception {
        int wanted = COMPLETED_CHECKPOINTS.get() + count;
        long deadline = System.nanoTime() + Duration.ofSeconds(120).toNanos();
        while (COMPLETED_CHECKPOINTS.get() < wanted) {
            JobStatus status = cluster.getJobStatus(job).get();
            if (status.isTerminalState()) {
                cluster.requestJobResult(job).get().toJobExecutionResult(ExactlyOnce.class.getClassLoader());
                throw new IllegalStateException("the job is " + status);
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("no " + count + " checkpoints in two minutes");
            }
            Thread.sleep(50);
        }
    }

    private static void say(String what) {
        System.out.println("# " + what);
        System.out.flush();
    }

    /** Changes events, slowly, and fails when it is asked to after a checkpoint. */
    private static final class Change extends RichMapFunction<String, String>
            implements CheckpointListener {
        private static final long serialVersionUID = 1L;

        private final int microseconds;

        Change(int microseconds) {
            this.microseconds = microseconds;
        }

        @Override
        public String map(String event) throws Exception {
            TimeUnit.MICROSECONDS.sleep(microseconds);
            if (COMPLETED_CHECKPOINTS.get() > 1 && FAILURES_WANTED.getAndUpdate(n -> Math.max(0, n - 1)) > 0) {
                throw new IllegalStateException("this failure was asked for");
            }
            return event + " seen";
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            if (getRuntimeContext().getIndexOfThisSubtask() == 0) {
                COMPLETED_CHECKPOINTS.incrementAndGet();
            }
        }
    }
}

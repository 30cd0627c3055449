package flinkjobs;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * The table API over streams of JSON: a query that runs for ever writes one stream into another,
 * exactly once, and batch queries ask both.
 */
final class Tables {
    private static final String COLUMNS = "(id INT, name STRING, price DOUBLE)";

    private Tables() {}

    public static void main(String[] arguments) throws Exception {
        int rows = Settings.number("events");
        Streams.create("orders", 3);
        Streams.create("cheap", 2);
        Streams.fill("orders", rows, n -> String.format("{\"id\": %d, \"name\": \"n%d\", \"price\": %d}", n, n % 7, n % 10));
        TableResult query = startQuery();
        String counted = "";
        for (int polls = 0; polls < 30 && !counted.equals(String.valueOf(rows / 2)); polls++) {
            Thread.sleep(1_000);
            counted = ask("SELECT COUNT(*) FROM t", "cheap");
        }
        System.out.println("# rows " + ask("SELECT COUNT(*), COUNT(DISTINCT id), SUM(id) FROM t", "cheap"));
        System.out.println("# dearest " + ask("SELECT MAX(price) FROM t", "cheap"));
        System.out.println("# groups " + ask("SELECT COUNT(*) FROM (SELECT name FROM t GROUP BY name)", "orders"));
        query.getJobClient().get().cancel().get();
        System.exit(0);
    }

    private static TableResult startQuery() {
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, small());
        environment.enableCheckpointing(1_000);
        // A checkpoint that begins before the readers are there never ends by itself.
        environment.getCheckpointConfig().setCheckpointTimeout(5_000);
        StreamTableEnvironment tables =
                StreamTableEnvironment.create(
                        environment,
                        EnvironmentSettings.newInstance().useBlinkPlanner().inStreamingMode().build());
        tables.executeSql(
                "CREATE TABLE orders " + COLUMNS + " WITH (" + connector()
                        + ", 'scan.streams' = 'orders', 'scan.execution.type' = 'streaming'"
                        + ", 'scan.reader-group.name' = 'tables'"
                        + ", 'scan.event-read.timeout.interval' = '200 ms'"
                        + ", 'scan.reader-group.refresh.interval' = '500 ms')");
        tables.executeSql(
                "CREATE TABLE cheap " + COLUMNS + " WITH (" + connector()
                        + ", 'sink.stream' = 'cheap', 'sink.semantic' = 'exactly-once'"
                        + ", 'sink.routing-key.field.name' = 'name')");
        return tables.executeSql("INSERT INTO cheap SELECT id, name, price FROM orders WHERE price < 5");
    }

    /** Runs a batch query over a stream as table t; its only row, columns apart by spaces. */
    @SuppressWarnings("try") // javac warns of a close() that may be interrupted
    private static String ask(String query, String stream) throws Exception {
        TableEnvironment tables =
                TableEnvironment.create(
                        EnvironmentSettings.newInstance().useBlinkPlanner().inBatchMode().build());
        // A subtask that gets no segment to read fails the job when it closes.
        tables.getConfig().getConfiguration().setInteger("table.exec.resource.default-parallelism", 1);
        tables.executeSql(
                "CREATE TABLE t " + COLUMNS + " WITH (" + connector()
                        + ", 'scan.streams' = '" + stream + "', 'scan.execution.type' = 'batch')");
        try (CloseableIterator<Row> answer = tables.executeSql(query).collect()) {
            return answer.next().toString().replace(",", " ");
        }
    }

    private static String connector() {
        return "'connector' = 'pravega', 'format' = 'json', 'controller-uri' = '"
                + Settings.controller() + "', 'scope' = '" + Settings.scope() + "'";
    }

    private static Configuration small() {
        Configuration configuration = new Configuration();
        configuration.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, MemorySize.ofMebiBytes(64));
        return configuration;
    }
}

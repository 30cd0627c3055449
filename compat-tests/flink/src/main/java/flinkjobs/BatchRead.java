package flinkjobs;

import io.pravega.connectors.flink.FlinkPravegaInputFormat;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.ExecutionEnvironment;

/** Reads the streams it is told with the batch source, and prints their events, one in a line. */
final class BatchRead {
    private BatchRead() {}

    public static void main(String[] streams) throws Exception {
        ExecutionEnvironment environment = ExecutionEnvironment.createLocalEnvironment(2);
        FlinkPravegaInputFormat.Builder<String> format = FlinkPravegaInputFormat.builder();
        format.withPravegaConfig(Settings.pravega()).withDeserializationSchema(new SimpleStringSchema());
        for (String stream : streams) {
            format.forStream(stream);
        }
        List<String> events = environment.createInput(format.build(), Types.STRING).collect();
        try (PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8)) {
            events.forEach(event -> out.println("event: " + event));
        }
        System.exit(0);
    }
}

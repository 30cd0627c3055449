package compat;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.Checkpoint;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReinitializationRequiredException;
import io.pravega.client.stream.Stream;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * A group of one reader that takes a step for each line that it reads, and answers with a line:
 * {@code SCOPE STREAM GROUP SEGMENTS}.
 *
 * <p>{@code write FIRST COUNT TIME} writes numbered events and notes the time; {@code read COUNT}
 * answers with the events, or with "again" if the reader has to be made again, which it then is;
 * {@code checkpoint} answers with its cut as text and
 * the number of events read before it; {@code tell} answers with the unread bytes and
 * the group's cut; {@code reset} sets the group to its head; {@code close} closes the reader.
 */
final class GroupSteps {
    private static final long READ_MILLISECONDS = 200;

    private final Stream stream;
    private final EventStreamClientFactory clients;
    private final ReaderGroup group;
    private final EventStreamWriter<String> writer;
    private final ScheduledExecutorService executor;
    private EventStreamReader<String> reader;
    private int readers;

    private GroupSteps(
            Stream stream,
            EventStreamClientFactory clients,
            ReaderGroup group,
            ScheduledExecutorService executor) {
        this.stream = stream;
        this.clients = clients;
        this.group = group;
        this.executor = executor;
        writer =
                clients.createEventWriter(
                        "writer",
                        stream.getStreamName(),
                        TestScope.TEXT,
                        EventWriterConfig.builder().build());
        makeReader();
    }

    public static void main(String[] arguments) throws Exception {
        String scope = arguments[0];
        Stream stream = Stream.of(scope, arguments[1]);
        ClientConfig config =
                ClientConfig.builder().controllerURI(TestScope.controllerUri()).build();
        ScheduledExecutorService executor = Executors.newScheduledThreadPool(2);
        try (StreamManager streams = StreamManager.create(config);
                ReaderGroupManager groups = ReaderGroupManager.withScope(scope, config);
                EventStreamClientFactory clients =
                        EventStreamClientFactory.withScope(scope, config)) {
            streams.createScope(scope);
            streams.createStream(
                    scope, arguments[1], TestScope.fixed(Integer.parseInt(arguments[3])));
            groups.createReaderGroup(
                    arguments[2],
                    ReaderGroupConfig.builder()
                            .disableAutomaticCheckpoints()
                            .groupRefreshTimeMillis(200)
                            .stream(stream)
                            .build());
            try (ReaderGroup group = groups.getReaderGroup(arguments[2])) {
                GroupSteps steps = new GroupSteps(stream, clients, group, executor);
                System.out.println("online");
                BufferedReader input =
                        new BufferedReader(
                                new InputStreamReader(System.in, StandardCharsets.UTF_8));
                for (String line = input.readLine(); line != null; line = input.readLine()) {
                    System.out.println(steps.take(line.split(" ")));
                }
                steps.reader.close();
                steps.writer.close();
            }
        } finally {
            executor.shutdown();
        }
    }

    private String take(String[] words) throws Exception {
        switch (words[0]) {
            case "write":
                return write(
                        Integer.parseInt(words[1]),
                        Integer.parseInt(words[2]),
                        Long.parseLong(words[3]));
            case "read":
                return read(Integer.parseInt(words[1]));
            case "checkpoint":
                return checkpoint();
            case "tell":
                return group.getMetrics().unreadBytes()
                        + " "
                        + group.getStreamCuts().get(stream).asText();
            case "reset":
                group.resetReaderGroup(
                        ReaderGroupConfig.builder()
                                .disableAutomaticCheckpoints()
                                .groupRefreshTimeMillis(200)
                                .stream(stream)
                                .build());
                return "reset";
            case "close":
                reader.close();
                return "closed";
            case "open":
                makeReader();
                return "open";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private String write(int first, int count, long time) throws Exception {
        List<CompletableFuture<Void>> written = new ArrayList<>();
        for (int number = first; number < first + count; number++) {
            written.add(writer.writeEvent("key-" + number % 7, "event-" + number));
        }
        writer.flush();
        for (CompletableFuture<Void> each : written) {
            each.get(60, TimeUnit.SECONDS);
        }
        writer.noteTime(time);
        return "written";
    }

    private String read(int count) {
        List<String> events = new ArrayList<>();
        Deadline late = new Deadline(60);
        while (events.size() < count && !late.passed()) {
            try {
                EventRead<String> event = reader.readNextEvent(READ_MILLISECONDS);
                if (event.getEvent() != null) {
                    events.add(event.getEvent());
                }
            } catch (ReinitializationRequiredException e) {
                reader.close();
                makeReader();
                return "again";
            }
        }
        return String.join(",", events);
    }

    private String checkpoint() throws Exception {
        CompletableFuture<Checkpoint> made =
                group.initiateCheckpoint("checkpoint-" + readers, executor);
        int events = 0;
        Deadline late = new Deadline(60);
        while (!late.passed()) {
            EventRead<String> event = reader.readNextEvent(READ_MILLISECONDS);
            if (event.isCheckpoint()) {
                // The reader tells its position when it is called again, and must not read on.
                reader.close();
                makeReader();
                return made.get(60, TimeUnit.SECONDS)
                                .asImpl()
                                .getPositions()
                                .get(stream)
                                .asText()
                        + " "
                        + events;
            }
            events += event.getEvent() == null ? 0 : 1;
        }
        return "late";
    }

    private void makeReader() {
        reader =
                clients.createReader(
                        "reader-" + readers++,
                        group.getGroupName(),
                        TestScope.TEXT,
                        ReaderConfig.builder().build());
    }
}

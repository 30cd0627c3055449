package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.admin.StreamInfo;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.RetentionPolicy;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Streams lose their beginnings by their policies. The server has to look at them every second. */
@Api("retention")
class RetentionTest {
    private static final int EVENT_BYTES = 1000;
    private static final long FRAME_BYTES = EVENT_BYTES + 16;

    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    @Timeout(60)
    void aSizeIsKept() throws Exception {
        String stream = create(RetentionPolicy.bySizeBytes(20_000));
        try (EventStreamWriter<String> writer = scope.writer(stream)) {
            long head = 0;
            Deadline late = new Deadline(40);
            while (head < 50_000) {
                assertTrue(!late.passed(), "the head is still at " + head);
                write(writer, 5);
                Thread.sleep(300);
                StreamInfo info = scope.info(stream);
                head = offset(info.getHeadStreamCut());
                assertTrue(offset(info.getTailStreamCut()) - head >= 20_000 || head == 0);
            }
        }
    }

    @Test
    @Timeout(60)
    void aTimeIsKept() throws Exception {
        String stream = create(RetentionPolicy.byTime(Duration.ofSeconds(5)));
        try (EventStreamWriter<String> writer = scope.writer(stream)) {
            write(writer, 10);
            Thread.sleep(2000);
            assertEquals(0, offset(scope.info(stream).getHeadStreamCut()));
            StreamCut tail = scope.info(stream).getTailStreamCut();
            waitForHead(stream, offset(tail));
            write(writer, 1);
            assertEquals(1, scope.readAll(stream, 1).values().size());
        }
    }

    @Test
    @Api("reader group: consumption-based retention")
    @Timeout(90)
    void whatAGroupHasNotReadStays() throws Exception {
        // With a minimum alone, client 0.9.0 sends it as the maximum too, and a group that lags
        // behind the maximum loses what it has not read. Clients since 0.9.1 send this maximum.
        String stream = create(RetentionPolicy.bySizeBytes(2_000, Long.MAX_VALUE));
        ReaderGroupConfig config =
                scope.groupConfig(stream)
                        .retentionType(
                                ReaderGroupConfig.StreamDataRetention
                                        .AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT)
                        .build();
        try (EventStreamWriter<String> writer = scope.writer(stream);
                ReaderGroup group = scope.createGroup(config);
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            // Who never released anything counts for nothing: begin with a first checkpoint.
            write(writer, 1);
            readSlowly(reader, 1);
            Deadline released = new Deadline(8);
            while (!released.passed()) {
                reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
            }
            writeSlowly(writer, 20);
            // Its checkpoints, of which there is one each second, release what it has read.
            readSlowly(reader, 10);
            Thread.sleep(3000);
            long head = offset(scope.info(stream).getHeadStreamCut());
            assertTrue(head > 0 && head <= 11 * FRAME_BYTES, "the head is at " + head);
            readSlowly(reader, 10);
            Deadline late = new Deadline(30);
            while (offset(scope.info(stream).getHeadStreamCut()) <= 11 * FRAME_BYTES) {
                assertTrue(!late.passed(), "what the group has read is still there");
                writeSlowly(writer, 1);
                readSlowly(reader, 1);
            }
        }
    }

    private static void writeSlowly(EventStreamWriter<String> writer, int count) throws Exception {
        for (int number = 0; number < count; number++) {
            write(writer, 1);
            Thread.sleep(150);
        }
    }

    private void readSlowly(EventStreamReader<String> reader, int count) throws Exception {
        Deadline late = new Deadline(30);
        for (int found = 0; found < count; ) {
            assertTrue(!late.passed(), "read " + found + " of " + count);
            if (reader.readNextEvent(TestScope.READ_TIMEOUT_MS).getEvent() != null) {
                found++;
                Thread.sleep(400);
            }
        }
    }

    private void waitForHead(String stream, long offset) throws Exception {
        Deadline late = new Deadline(30);
        while (offset(scope.info(stream).getHeadStreamCut()) < offset) {
            assertTrue(!late.passed(), "the head is not at " + offset + " after 30 s");
            Thread.sleep(200);
        }
    }

    private static void write(EventStreamWriter<String> writer, int count) throws Exception {
        for (int number = 0; number < count; number++) {
            writer.writeEvent("a", "x".repeat(EVENT_BYTES)).get(10, TimeUnit.SECONDS);
        }
    }

    private String create(RetentionPolicy policy) {
        String stream = TestScope.unique("stream");
        StreamConfiguration configuration =
                StreamConfiguration.builder()
                        .scalingPolicy(ScalingPolicy.fixed(1))
                        .retentionPolicy(policy)
                        .build();
        scope.streams.createStream(scope.name, stream, configuration);
        return stream;
    }

    /** The offset in the only segment of a cut. */
    private static long offset(StreamCut cut) {
        List<Long> offsets = List.copyOf(cut.asImpl().getPositions().values());
        assertEquals(1, offsets.size());
        return offsets.get(0);
    }
}

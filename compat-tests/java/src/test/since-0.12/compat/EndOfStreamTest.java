package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderGroup;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** A reader of a sealed stream is told that nothing is left to come. */
@Api("sealed streams")
class EndOfStreamTest {
    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void aReaderWaitingAtTheTailMeetsTheEnd() throws Exception {
        String stream = scope.createStream(2);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            List<String> events = TestScope.readAll(reader, 10).values();
            assertEquals(TestScope.numbered("a:", 0, 10), events);
            assertTrue(scope.streams.sealStream(scope.name, stream));
            // Once every segment has ended the reader says that there is nothing left to come.
            Deadline deadline = new Deadline(60);
            EventRead<String> read = reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
            while (!read.isReadCompleted()) {
                assertFalse(deadline.passed(), "no end of stream after 60 s");
                assertEquals(null, read.getEvent());
                read = reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
            }
        }
    }
}

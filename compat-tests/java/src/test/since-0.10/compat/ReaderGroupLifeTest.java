package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.pravega.client.stream.ConfigMismatchException;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReaderGroupNotFoundException;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Reader groups are made once, found by name, and gone once they are deleted. */
@Api("reader group")
class ReaderGroupLifeTest {
    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void aGroupIsCreatedOnceAndGoneOnceDeleted() {
        String stream = scope.createStream(1);
        String other = scope.createStream(1);
        ReaderGroupConfig config = scope.groupConfig(stream).build();
        scope.groups.createReaderGroup("group", config);
        scope.groups.createReaderGroup("group", config);
        assertThrows(
                ConfigMismatchException.class,
                () -> scope.groups.createReaderGroup("group", scope.groupConfig(other).build()));
        try (ReaderGroup group = scope.groups.getReaderGroup("group")) {
            assertEquals(Set.of(scope.name + "/" + stream), group.getStreamNames());
        }
        scope.groups.deleteReaderGroup("group");
        assertThrows(
                ReaderGroupNotFoundException.class, () -> scope.groups.getReaderGroup("group"));
        scope.groups.createReaderGroup("group", scope.groupConfig(other).build());
        try (ReaderGroup group = scope.groups.getReaderGroup("group")) {
            assertEquals(Set.of(scope.name + "/" + other), group.getStreamNames());
        }
    }
}

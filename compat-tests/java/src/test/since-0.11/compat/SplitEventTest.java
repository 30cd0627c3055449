package compat;

import io.pravega.client.stream.EventWriterConfig;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Events that are longer than a frame are sent in pieces, and are read whole. */
@Api("large events")
class SplitEventTest {
    private static final int MIB = 1 << 20;

    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    @Timeout(180)
    void eventsOverEightMebibytesAmongSmallOnes() throws Exception {
        int[] lengths = {100, 8 * MIB + 1, 1, 20 * MIB, 3 * MIB, 33 * MIB + 5, 50, 7};
        LargeEventTest.writeAndReadBack(
                scope, lengths, EventWriterConfig.builder().enableLargeEvents(true).build());
    }
}

package compat;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.byteStream.ByteStreamReader;
import io.pravega.client.byteStream.ByteStreamWriter;
import java.io.IOException;
import java.util.Arrays;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Byte streams from their heads, which truncation moves. */
@Api("byte stream")
class ByteStreamHeadTest {
    @RegisterExtension final TestScope scope = new TestScope();

    private ByteStreamClientFactory clients;
    private String stream;

    @BeforeEach
    void open() {
        stream = scope.createStream(1);
        clients = ByteStreamClientFactory.withScope(scope.name, scope.config);
    }

    @AfterEach
    void close() {
        clients.close();
    }

    private static byte[] randomBytes(int length) {
        byte[] bytes = new byte[length];
        new Random(length).nextBytes(bytes);
        return bytes;
    }

    private void write(byte[] bytes) throws IOException {
        try (ByteStreamWriter writer = clients.createByteStreamWriter(stream)) {
            writer.write(bytes);
            writer.flush();
        }
    }

    private static byte[] read(ByteStreamReader reader, int length) throws IOException {
        byte[] bytes = new byte[length];
        int filled = 0;
        while (filled < length) {
            int count = reader.read(bytes, filled, length - filled);
            assertTrue(count > 0, "end of stream after " + filled + " bytes");
            filled += count;
        }
        return bytes;
    }

    @Test
    void theHeadIsWhereTheFirstByteLies() throws Exception {
        try (ByteStreamReader reader = clients.createByteStreamReader(stream)) {
            assertEquals(0, reader.fetchHeadOffset());
        }
    }

    @Test
    void truncatedBytesAreGone() throws Exception {
        byte[] bytes = randomBytes(3_000_000);
        write(bytes);
        try (ByteStreamWriter writer = clients.createByteStreamWriter(stream);
                ByteStreamReader early = clients.createByteStreamReader(stream)) {
            writer.truncateDataBefore(2_000_000);
            assertEquals(2_000_000, writer.fetchHeadOffset());
            assertEquals(3_000_000, writer.fetchTailOffset());
            early.seekToOffset(1_000_000);
            assertThrows(Exception.class, () -> read(early, 10));
            try (ByteStreamReader late = clients.createByteStreamReader(stream)) {
                assertEquals(2_000_000, late.getOffset());
                assertArrayEquals(
                        Arrays.copyOfRange(bytes, 2_000_000, 3_000_000), read(late, 1_000_000));
            }
            writer.truncateDataBefore(3_000_000);
            assertEquals(3_000_000, writer.fetchHeadOffset());
            assertEquals(3_000_000, writer.fetchTailOffset());
        }
    }
}

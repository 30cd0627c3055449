package compat;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.byteStream.ByteStreamReader;
import io.pravega.client.byteStream.ByteStreamWriter;
import java.io.IOException;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** One segment as a file of raw bytes: written, read anywhere, truncated, sealed. */
@Api("byte stream")
class ByteStreamTest {
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
    void whatIsWrittenIsRead() throws Exception {
        byte[] bytes = randomBytes(20_000_001);
        write(bytes);
        try (ByteStreamReader reader = clients.createByteStreamReader(stream)) {
            assertEquals(bytes.length, reader.fetchTailOffset());
            assertArrayEquals(bytes, read(reader, bytes.length));
            assertEquals(bytes.length, reader.getOffset());
        }
    }

    @Test
    void smallWritesOfAllSizesLieSideBySide() throws Exception {
        byte[] bytes = randomBytes(500_000);
        try (ByteStreamWriter writer = clients.createByteStreamWriter(stream)) {
            int from = 0;
            for (int length = 1; from < bytes.length; length = length * 3 % 20_011) {
                int until = Math.min(bytes.length, from + length);
                writer.write(bytes, from, until - from);
                from = until;
            }
            writer.write(7);
            writer.flush();
            assertEquals(bytes.length + 1, writer.fetchTailOffset());
        }
        try (ByteStreamReader reader = clients.createByteStreamReader(stream)) {
            assertArrayEquals(bytes, read(reader, bytes.length));
            assertEquals(7, reader.read());
        }
    }

    @Test
    void aReaderSeeksAndSkips() throws Exception {
        byte[] bytes = randomBytes(3_000_000);
        write(bytes);
        try (ByteStreamReader reader = clients.createByteStreamReader(stream)) {
            for (int offset : new int[] {2_999_990, 0, 1_500_000, 17, 2_000_000}) {
                reader.seekToOffset(offset);
                assertArrayEquals(Arrays.copyOfRange(bytes, offset, offset + 10), read(reader, 10));
            }
            reader.seekToOffset(100);
            assertEquals(1_000_000, reader.skip(1_000_000));
            assertArrayEquals(Arrays.copyOfRange(bytes, 1_000_100, 1_000_110), read(reader, 10));
        }
    }

    @Test
    void aReaderAtTheTailWaitsForBytes() throws Exception {
        write(new byte[] {1, 2, 3});
        try (ByteStreamReader reader = clients.createByteStreamReader(stream)) {
            assertArrayEquals(new byte[] {1, 2, 3}, read(reader, 3));
            new Parallel()
                    .add(() -> assertArrayEquals(new byte[] {4, 5}, read(reader, 2)))
                    .add(
                            () -> {
                                Thread.sleep(1000);
                                write(new byte[] {4, 5});
                            })
                    .run();
        }
    }

    @Test
    void writersTakeTurnsAtTheTail() throws Exception {
        for (int round = 0; round < 5; round++) {
            write(new byte[] {(byte) round, (byte) round});
        }
        try (ByteStreamReader reader = clients.createByteStreamReader(stream)) {
            assertArrayEquals(new byte[] {0, 0, 1, 1, 2, 2, 3, 3, 4, 4}, read(reader, 10));
        }
    }

    @Test
    void aSealedStreamEnds() throws Exception {
        byte[] bytes = randomBytes(100_000);
        ByteStreamWriter writer = clients.createByteStreamWriter(stream);
        writer.write(bytes);
        writer.closeAndSeal();
        try (ByteStreamReader reader = clients.createByteStreamReader(stream)) {
            assertArrayEquals(bytes, read(reader, bytes.length));
            assertEquals(-1, reader.read());
            assertEquals(-1, reader.read(new byte[10]));
            assertEquals(100_000, reader.fetchTailOffset());
        }
    }

    @Test
    void dataAvailableIsTold() throws Exception {
        try (ByteStreamReader reader = clients.createByteStreamReader(stream)) {
            var available = reader.onDataAvailable();
            write(randomBytes(1000));
            assertTrue(available.get(30, TimeUnit.SECONDS) > 0);
        }
    }
}

package golden;

import io.netty.buffer.Unpooled;
import io.pravega.client.connection.impl.CommandEncoder;
import io.pravega.shared.metrics.MetricNotifier;
import io.pravega.shared.protocol.netty.Append;
import io.pravega.shared.protocol.netty.AppendBatchSizeTracker;
import io.pravega.shared.protocol.netty.PravegaNodeUri;
import io.pravega.shared.protocol.netty.WireCommands;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.HexFormat;
import java.util.StringJoiner;
import java.util.UUID;

/** What the official client's encoder sends for events, at several sizes of its append blocks. */
final class AppendStreams {
    private static final UUID FIRST = new UUID(1, 2);
    private static final UUID SECOND = new UUID(3, 4);

    private AppendStreams() {
    }

    /** The stream of 40 events of growing size, alternating between two writers now and then. */
    static String json(int blockSize) throws IOException {
        ByteArrayOutputStream stream = new ByteArrayOutputStream();
        CommandEncoder encoder = new CommandEncoder(flow -> tracker(blockSize),
                MetricNotifier.NO_OP_METRIC_NOTIFIER, stream, null,
                new PravegaNodeUri("localhost", 1));
        encoder.write(new WireCommands.Hello(16, 5));
        encoder.write(new WireCommands.SetupAppend(1, FIRST, "first", ""));
        encoder.write(new WireCommands.SetupAppend(2, SECOND, "second", ""));
        StringJoiner events = new StringJoiner(", ", "[", "]");
        long[] numbers = new long[2];
        for (int index = 0; index < 40; index++) {
            int writer = index % 7 == 3 || index > 30 && index % 2 == 0 ? 1 : 0;
            byte[] event = event(index);
            encoder.write(new Append(writer == 0 ? "first" : "second", writer == 0 ? FIRST : SECOND,
                    ++numbers[writer], 1, Unpooled.wrappedBuffer(event), null, writer + 1L));
            events.add(String.format("[%d, \"%s\"]", writer, HexFormat.of().formatHex(event)));
            if (index % 11 == 10) {
                encoder.write(new WireCommands.KeepAlive());
            }
        }
        encoder.write(new WireCommands.KeepAlive());
        return String.format("{\"block_size\": %d, \"events\": %s, \"stream\": \"%s\"}", blockSize,
                events, HexFormat.of().formatHex(stream.toByteArray()));
    }

    /** Framed as clients do: an int32 zero and an int32 length in front. */
    private static byte[] event(int index) {
        byte[] framed = new byte[8 + index];
        framed[7] = (byte) index;
        for (int position = 8; position < framed.length; position++) {
            framed[position] = (byte) (31 * index + position);
        }
        return framed;
    }

    private static AppendBatchSizeTracker tracker(int blockSize) {
        return new AppendBatchSizeTracker() {
            @Override
            public void recordAppend(long eventNumber, int size) {
            }

            @Override
            public long recordAck(long eventNumber) {
                return 0;
            }

            @Override
            public int getAppendBlockSize() {
                return blockSize;
            }

            @Override
            public int getBatchTimeout() {
                return 1;
            }
        };
    }
}

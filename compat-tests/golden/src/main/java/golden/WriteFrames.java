package golden;

import io.pravega.shared.protocol.netty.WireCommand;
import io.pravega.shared.protocol.netty.WireCommands;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.StringJoiner;

/** Writes one JSON file: every command in every variant, and the append streams, a line each. */
public final class WriteFrames {
    private static final int HEX_BYTES_MAX = 600;

    private WriteFrames() {
    }

    public static void main(String[] arguments) throws Exception {
        StringJoiner commands = new StringJoiner(",\n", "{\"commands\": [\n", "\n],\n");
        for (var command : Commands.ALL.entrySet()) {
            for (Variant variant : Variant.values()) {
                Values values = new Values(variant);
                byte[] frame = frame(command.getValue().apply(values));
                commands.add(String.format("{\"command\": \"%s\", \"fields\": %s, %s}",
                        command.getKey(), values.json(), description(frame)));
            }
        }
        StringJoiner streams = new StringJoiner(",\n", "\"append_streams\": [\n", "\n]}\n");
        for (int blockSize : new int[] {0, 40, 100, 300, 5_000}) {
            streams.add(AppendStreams.json(blockSize));
        }
        Files.writeString(Path.of(arguments[0]), commands + streams.toString(),
                StandardCharsets.US_ASCII);
    }

    /** The frame that the official encoders make around the fields. */
    private static byte[] frame(WireCommand command) throws IOException {
        ByteArrayOutputStream fields = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(fields);
        command.writeFields(out);
        if (command instanceof WireCommands.Event) {
            return fields.toByteArray(); // writes its own header
        }
        if (command instanceof WireCommands.AppendBlock block) {
            // Its encoder streams the data behind the fields.
            block.getData().getBytes(0, out, block.getData().readableBytes());
        }
        ByteArrayOutputStream frame = new ByteArrayOutputStream();
        DataOutputStream framed = new DataOutputStream(frame);
        framed.writeInt(command.getType().getCode());
        framed.writeInt(fields.size());
        fields.writeTo(framed);
        return frame.toByteArray();
    }

    /** A short frame as it is, a long one by its length and digest. */
    private static String description(byte[] frame) throws NoSuchAlgorithmException {
        if (frame.length <= HEX_BYTES_MAX) {
            return "\"frame\": \"" + HexFormat.of().formatHex(frame) + "\"";
        }
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(frame);
        return String.format("\"length\": %d, \"sha256\": \"%s\"", frame.length,
                HexFormat.of().formatHex(digest));
    }
}

package compat;

import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.byteStream.ByteStreamReader;
import io.pravega.client.byteStream.ByteStreamWriter;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.impl.ByteArraySerializer;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;

/**
 * Copies a file to a stream, or from it: {@code write|seal|read|event SCOPE STREAM FILE}.
 *
 * <p>{@code write} and {@code seal} append the file to a byte stream, {@code seal} also seals it;
 * {@code read} copies a sealed byte stream from its head to its end; {@code event} writes the file
 * as one event.
 */
final class FileCopies {
    private FileCopies() {}

    public static void main(String[] arguments) throws Exception {
        String scope = arguments[1];
        String stream = arguments[2];
        Path file = Path.of(arguments[3]);
        ClientConfig config =
                ClientConfig.builder().controllerURI(TestScope.controllerUri()).build();
        if (arguments[0].equals("event")) {
            writeEvent(scope, stream, file, config);
            return;
        }
        try (ByteStreamClientFactory clients = ByteStreamClientFactory.withScope(scope, config)) {
            if (arguments[0].equals("read")) {
                try (ByteStreamReader reader = clients.createByteStreamReader(stream);
                        OutputStream output = Files.newOutputStream(file)) {
                    reader.transferTo(output);
                }
                return;
            }
            ByteStreamWriter writer = clients.createByteStreamWriter(stream);
            try (InputStream input = Files.newInputStream(file)) {
                input.transferTo(writer);
            }
            writer.flush();
            if (arguments[0].equals("seal")) {
                writer.closeAndSeal();
            } else {
                writer.close();
            }
        }
    }

    private static void writeEvent(String scope, String stream, Path file, ClientConfig config)
            throws Exception {
        try (EventStreamClientFactory clients = EventStreamClientFactory.withScope(scope, config);
                EventStreamWriter<byte[]> writer =
                        clients.createEventWriter(
                                stream,
                                new ByteArraySerializer(),
                                EventWriterConfig.builder().enableLargeEvents(true).build())) {
            writer.writeEvent(Files.readAllBytes(file)).get(60, TimeUnit.SECONDS);
        }
    }
}

package compat;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderConfig;

/**
 * A reader of a group that others have made, and whose other readers may be of other clients:
 * {@code SCOPE GROUP READER}. It says "online", then each event in a line of its own, and leaves
 * the group when its input ends.
 */
final class SharingReader {
    private static final long READ_MILLISECONDS = 100;

    private SharingReader() {}

    public static void main(String[] arguments) throws Exception {
        ClientConfig config =
                ClientConfig.builder().controllerURI(TestScope.controllerUri()).build();
        try (EventStreamClientFactory clients =
                        EventStreamClientFactory.withScope(arguments[0], config);
                EventStreamReader<String> reader =
                        clients.createReader(
                                arguments[2],
                                arguments[1],
                                TestScope.TEXT,
                                ReaderConfig.builder().build())) {
            System.out.println("online");
            while (System.in.available() == 0) {
                EventRead<String> read = reader.readNextEvent(READ_MILLISECONDS);
                if (read.getEvent() != null) {
                    System.out.println(read.getEvent());
                }
            }
        }
    }
}

package compat;

import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.TruncatedDataException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;

/**
 * Clients of a store that loses the events of a stream and is recovered. A program, not a test:
 * {@code RecoveredStore before DIRECTORY} writes, reads a part with a group, and leaves a transaction
 * open; {@code RecoveredStore after DIRECTORY} goes on with all of them.
 */
final class RecoveredStore {
    private static final String SCOPE = "recovered";
    private static final String KEY = "a";
    private static final int COUNT = 100;
    private static final int READ_BEFORE = 40;

    private final TestScope scope = new TestScope();
    private final Path names;

    private RecoveredStore(Path directory) {
        names = directory.resolve("names");
        scope.open(SCOPE);
    }

    public static void main(String[] arguments) throws Exception {
        RecoveredStore program = new RecoveredStore(Path.of(arguments[1]));
        if (arguments[0].equals("before")) {
            program.before();
        } else {
            program.after();
        }
        // Client threads that are still busy must not keep us.
        Runtime.getRuntime().halt(0);
    }

    private void before() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, KEY, TestScope.numbered("old:", 0, COUNT));
        ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
        try (EventStreamReader<String> reader = scope.reader(group, "first")) {
            for (int number = 0; number < READ_BEFORE; ) {
                EventRead<String> read = reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
                number += read.getEvent() == null ? 0 : 1;
            }
        }
        Transaction<String> open = writer(stream).beginTxn();
        open.writeEvent(KEY, "open:0");
        open.flush();
        Files.write(names, List.of(stream, group.getGroupName(), open.getTxnId().toString()));
    }

    private void after() throws Exception {
        List<String> named = Files.readAllLines(names);
        String stream = named.get(0);
        List<String> expected = TestScope.numbered("new:", 0, COUNT);
        scope.write(stream, KEY, expected);
        try (TransactionalEventStreamWriter<String> writer = writer(stream)) {
            Transaction<String> open = writer.getTxn(UUID.fromString(named.get(2)));
            commit(open);
            expected.add("open:0");
            Transaction<String> begun = writer.beginTxn();
            for (String event : TestScope.numbered("txn:", 0, 10)) {
                begun.writeEvent(KEY, event);
                expected.add(event);
            }
            commit(begun);
        }
        ReaderGroup older = scope.groups.getReaderGroup(named.get(1));
        int told = 0;
        List<String> found = new ArrayList<>();
        try (EventStreamReader<String> reader = scope.reader(older, "second")) {
            Deadline deadline = new Deadline(60);
            while (found.size() < expected.size() && !deadline.passed()) {
                try {
                    EventRead<String> read = reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
                    if (read.getEvent() != null) {
                        found.add(read.getEvent());
                    }
                } catch (TruncatedDataException lost) {
                    told++;
                }
            }
        }
        check("the group made before", expected, found);
        check("a new group", expected, scope.readAll(stream, expected.size()).values());
        System.out.println("told " + told + " times, read " + found.size());
    }

    private TransactionalEventStreamWriter<String> writer(String stream) {
        EventWriterConfig config =
                EventWriterConfig.builder().transactionTimeoutTime(300_000).build();
        return scope.clients.createTransactionalEventWriter(
                "writer", stream, TestScope.TEXT, config);
    }

    private static void commit(Transaction<String> transaction) throws Exception {
        transaction.commit();
        Deadline deadline = new Deadline(60);
        while (transaction.checkStatus() != Transaction.Status.COMMITTED) {
            if (deadline.passed()) {
                throw new AssertionError("it stays " + transaction.checkStatus());
            }
            Thread.sleep(20);
        }
    }

    private static void check(String reader, List<String> expected, List<String> found) {
        if (!expected.equals(found)) {
            throw new AssertionError(reader + " has read " + found);
        }
    }
}

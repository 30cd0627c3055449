package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** A stream's transactions that ended are listed with what became of them. */
@Api("transactions")
class CompletedTransactionsTest {
    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void completedTransactionsAreListedForTheirStream() throws Exception {
        String stream = scope.createStream(1);
        String other = scope.createStream(1);
        try (TransactionalEventStreamWriter<String> writer = writer(stream);
                TransactionalEventStreamWriter<String> otherWriter = writer(other)) {
            Transaction<String> elsewhere = otherWriter.beginTxn();
            elsewhere.commit();
            await(elsewhere, Transaction.Status.COMMITTED);
            Transaction<String> aborted = writer.beginTxn();
            aborted.abort();
            await(aborted, Transaction.Status.ABORTED);
            Transaction<String> committed = writer.beginTxn();
            committed.commit();
            await(committed, Transaction.Status.COMMITTED);
            writer.beginTxn();
            assertEquals(
                    aborted.getTxnId() + " ABORTED, " + committed.getTxnId() + " COMMITTED",
                    completed(stream));
        }
    }

    private String completed(String stream) {
        return String.join(
                ", ",
                scope.streams.listCompletedTransactions(Stream.of(scope.name, stream)).stream()
                        .map(info -> info.getTransactionId() + " " + info.getTransactionStatus())
                        .toList());
    }

    private TransactionalEventStreamWriter<String> writer(String stream) {
        return scope.clients.createTransactionalEventWriter(
                "writer", stream, TestScope.TEXT, EventWriterConfig.builder().build());
    }

    private static void await(Transaction<String> transaction, Transaction.Status status)
            throws Exception {
        Deadline deadline = new Deadline(30);
        while (transaction.checkStatus() != status) {
            assertTrue(!deadline.passed(), () -> "not " + status + " after 30 s");
            Thread.sleep(5);
        }
    }
}

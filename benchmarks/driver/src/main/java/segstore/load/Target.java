package segstore.load;

import java.nio.ByteBuffer;
import java.util.function.Consumer;

/**
 * What is loaded: a stream made for one run, and the clients that write and read it. A call that fails throws an unchecked exception.
 */
interface Target {
    /**
     * A topic of Pulsar. Its class is in a project of its own, {@code driver/pulsar}, since its client is large: only who asks for it has it
     * on the class path.
     */
    static Target ofPulsar(String address, String topic, boolean ownGroups, double lingerMillis, int batchBytes) {
        try {
            return (Target) Class.forName("segstore.load.PulsarTarget")
                    .getDeclaredConstructor(String.class, String.class, boolean.class, double.class, int.class)
                    .newInstance(address, topic, ownGroups, lingerMillis, batchBytes);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("there is no client of Pulsar", e);
        }
    }

    /** Called once with the outcome of one event: null when it is acknowledged, else the problem. */
    interface Ack {
        void done(Throwable problem);
    }

    /** Writes events; used by one thread. */
    interface Sender {
        /** Sends {@code event}, which the client may keep until {@code ack} is called. {@code key} is null for none. */
        void send(String key, byte[] event, Ack ack);

        void close();
    }

    /** Reads events; used by one thread. */
    interface Receiver {
        /** Waits for events, at most this long, and passes on those that have come. */
        void receive(long timeoutMillis, Consumer<ByteBuffer> events);

        void close();
    }

    /** Makes the stream, with this many segments, and what so many receivers need. */
    void create(int segments, int receivers);

    Sender sender(int index);

    Receiver receiver(int index);

    /**
     * One of {@code count} receivers that share all that a stream has from its head on. They are made one after the other, {@code index} from
     * 0 on; the stream may be there from before.
     */
    Receiver drainer(int index, int count);

    /** Deletes all that {@code create} made; senders and receivers are closed. */
    void delete();

    void close();
}

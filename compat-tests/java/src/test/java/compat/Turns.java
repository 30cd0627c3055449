package compat;

import java.util.EnumMap;
import java.util.Map;

/**
 * Two kinds of work that never overlap, each of which many may do at the same time. When the last
 * one leaves, all that wait for the other kind begin together.
 */
final class Turns {
    enum Kind {
        CALM,
        AMONG_KILLS
    }

    private final Map<Kind, Integer> waiting = new EnumMap<>(Kind.class);
    private Kind current = Kind.CALM;
    private int inside;
    private int admitted;

    Turns() {
        for (Kind kind : Kind.values()) {
            waiting.put(kind, 0);
        }
    }

    Place newPlace() {
        return new Place();
    }

    /** Where one party is: nowhere at first. */
    final class Place implements AutoCloseable {
        private Kind here;
        private boolean closed;

        /** Leaves what it does and waits for its turn with another kind; nothing once closed. */
        void enter(Kind kind) {
            synchronized (Turns.this) {
                leave();
                if (!closed) {
                    await(kind);
                    here = kind;
                }
            }
        }

        @Override
        public void close() {
            synchronized (Turns.this) {
                closed = true;
                leave();
            }
        }

        private void leave() {
            if (here != null) {
                here = null;
                inside--;
                letOthersIn();
            }
        }
    }

    private void await(Kind kind) {
        waiting.merge(kind, 1, Integer::sum);
        letOthersIn();
        boolean interrupted = false;
        while (current != kind || admitted == 0) {
            try {
                wait();
            } catch (InterruptedException later) {
                interrupted = true;
            }
        }
        admitted--;
        inside++;
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Those that wait for what is done now join unless others wait; those others are next. */
    private void letOthersIn() {
        Kind other = current == Kind.CALM ? Kind.AMONG_KILLS : Kind.CALM;
        if (waiting.get(other) == 0) {
            admit();
        } else if (inside == 0 && admitted == 0) {
            current = other;
            admit();
        }
    }

    private void admit() {
        admitted += waiting.put(current, 0);
        notifyAll();
    }
}

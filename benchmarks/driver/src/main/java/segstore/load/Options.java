package segstore.load;

import java.net.URI;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Stream;

/** What the command line asks for. Every number is checked here, so that the rest of the driver can trust it. */
record Options(
        URI controller,
        String kafka,
        String pulsar,
        String scope,
        String stream,
        double rate,
        int eventSize,
        int segments,
        int producers,
        int consumers,
        int keys,
        double warmupSeconds,
        double warmupSecondsMax,
        double warmupWindowSeconds,
        double seconds,
        double drainSeconds,
        long readTimeoutMillis,
        int outstandingMax,
        LatencyFrom latencyFrom,
        boolean connectionPooling,
        boolean ownGroups,
        boolean keepStream,
        int scaleAbove,
        long backlog,
        double lingerMillis,
        int batchBytes) {

    static final int EVENT_SIZE_MIN = Long.BYTES;
    static final int EVENT_SIZE_MAX = 8 * 1024 * 1024;
    private static final long OUTSTANDING_BYTES_DEFAULT = 128L << 20;
    private static final int OUTSTANDING_EVENTS_DEFAULT = 200_000;
    static final int BATCH_BYTES_DEFAULT = 128 * 1024;
    static final double LINGER_MILLIS_DEFAULT = 1;

    /** Where the latency of an event starts. */
    enum LatencyFrom {
        /** Just before the client's writeEvent is called: what OpenMessaging Benchmark reports. */
        SEND,
        /** When the rate says it should have been sent: free of coordinated omission. Needs a rate. */
        INTENDED
    }

    static final String USAGE = """
            usage: java -cp ... segstore.load.LoadDriver SERVER [options]
              --controller tcp://127.0.0.1:9090 | --kafka 127.0.0.1:9092 | --pulsar http://127.0.0.1:8080
              --scope NAME            created when missing                                     (benchmarks)
              --stream NAME           created, then sealed and deleted at the end              (load-<random>)
              --rate EVENTS           events a second of all producers together, 0: unthrottled (10000)
              --event-size BYTES      8 to 8388608; the first eight bytes are the time of sending (100)
              --segments COUNT        fixed number of segments of the stream                   (1)
              --producers COUNT       one thread and one client writer each                    (1)
              --consumers COUNT       one thread and one reader each, all in one reader group   (1)
              --keys none|COUNT       routing keys used in turn                                (none)
              --warmup SECONDS        load that is not measured                                (5)
              --warmup-max SECONDS    then on until latencies are steady, up to this           (as --warmup)
              --warmup-window SECONDS the p50 of three of these differ by < 5 % when it is     (5)
              --seconds SECONDS       measured                                                 (10)
              --drain SECONDS         longest wait for the last acks and events                (10)
              --read-timeout-ms MS    time-out of readNextEvent                                (10)
              --max-outstanding COUNT unacknowledged events of all producers together
                                      (128 MiB of events, 200000 at most)
              --latency-from send|intended                                                     (send)
              --connection-pooling    share connections between the segment writers            (off)
              --own-groups            each consumer reads all, in a reader group of its own    (off)
              --keep-stream           do not delete the stream at the end                      (off)
              --scale-above EVENTS    events a second of a segment above which it is split     (never)
              --backlog EVENTS        readers are held until so many are acknowledged; measured from then on,
                                      until they are within a second of the writers            (none)
              --linger-ms MS          the time for which a client waits for a batch to fill; not Pravega's (1)
              --batch-bytes BYTES     length of a batch, 0 for none; not Pravega's              (131072)
            """;

    /** Thrown for a command line that cannot be run; the message says why. */
    static final class UsageException extends Exception {
        private static final long serialVersionUID = 1L;

        UsageException(String message) {
            super(message);
        }
    }

    static Options parse(List<String> arguments) throws UsageException {
        return new Parser(arguments).parse();
    }

    private static final class Parser {
        private final Iterator<String> arguments;
        private final Set<String> seen = new HashSet<>();
        private URI controller;
        private String kafka;
        private String pulsar;
        private String scope = "benchmarks";
        private String stream = "load-" + Long.toHexString(System.nanoTime());
        private double rate = 10_000;
        private int eventSize = 100;
        private int segments = 1;
        private int producers = 1;
        private int consumers = 1;
        private int keys;
        private double warmup = 5;
        private double warmupMax;
        private double warmupWindow = 5;
        private double seconds = 10;
        private double drain = 10;
        private long readTimeout = 10;
        private int outstanding;
        private LatencyFrom latencyFrom = LatencyFrom.SEND;
        private boolean pooling;
        private boolean ownGroups;
        private boolean keepStream;
        private int scaleAbove;
        private long backlog;
        private double linger = LINGER_MILLIS_DEFAULT;
        private int batchBytes = BATCH_BYTES_DEFAULT;

        Parser(List<String> arguments) {
            this.arguments = arguments.iterator();
        }

        Options parse() throws UsageException {
            while (arguments.hasNext()) {
                String option = arguments.next();
                if (!seen.add(option)) {
                    throw new UsageException(option + " is given twice");
                }
                take(option);
            }
            if (Stream.of(controller, kafka, pulsar).filter(Objects::nonNull).count() != 1) {
                throw new UsageException("one of --controller, --kafka and --pulsar is needed");
            }
            if (latencyFrom == LatencyFrom.INTENDED && rate == 0) {
                throw new UsageException("--latency-from intended needs a --rate");
            }
            int bounded = outstanding > 0 ? outstanding : outstandingDefault();
            return new Options(controller, kafka, pulsar, scope, stream, rate, eventSize, segments, producers, consumers, keys, warmup,
                    Math.max(warmup, warmupMax), warmupWindow, seconds, drain, readTimeout, Math.max(bounded, producers), latencyFrom,
                    pooling, ownGroups, keepStream, scaleAbove, backlog, linger, batchBytes);
        }

        private int outstandingDefault() {
            return (int) Math.min(OUTSTANDING_EVENTS_DEFAULT, Math.max(16, OUTSTANDING_BYTES_DEFAULT / eventSize));
        }

        private void take(String option) throws UsageException {
            switch (option) {
                case "--controller" -> controller = URI.create(value(option));
                case "--kafka" -> kafka = value(option);
                case "--pulsar" -> pulsar = value(option);
                case "--scope" -> scope = value(option);
                case "--stream" -> stream = value(option);
                case "--rate" -> rate = number(option, 0, 1e8);
                case "--event-size" -> eventSize = count(option, EVENT_SIZE_MIN, EVENT_SIZE_MAX);
                case "--segments" -> segments = count(option, 1, 100_000);
                case "--producers" -> producers = count(option, 1, 10_000);
                case "--consumers" -> consumers = count(option, 0, 10_000);
                case "--keys" -> keys = keyCount(option);
                case "--warmup-max" -> warmupMax = number(option, 0, 86_400);
                case "--warmup-window" -> warmupWindow = number(option, 0.01, 3_600);
                case "--warmup" -> warmup = number(option, 0, 86_400);
                case "--seconds" -> seconds = number(option, 0.1, 86_400);
                case "--drain" -> drain = number(option, 0, 3_600);
                case "--read-timeout-ms" -> readTimeout = count(option, 1, 3_600_000);
                case "--max-outstanding" -> outstanding = count(option, 1, 100_000_000);
                case "--latency-from" -> latencyFrom = latencyFrom(option);
                case "--connection-pooling" -> pooling = true;
                case "--own-groups" -> ownGroups = true;
                case "--keep-stream" -> keepStream = true;
                case "--scale-above" -> scaleAbove = count(option, 1, Integer.MAX_VALUE);
                case "--backlog" -> backlog = count(option, 1, Integer.MAX_VALUE);
                case "--linger-ms" -> linger = number(option, 0, 60_000);
                case "--batch-bytes" -> batchBytes = count(option, 0, 64 * 1024 * 1024);
                default -> throw new UsageException("unknown option " + option);
            }
        }

        private String value(String option) throws UsageException {
            if (!arguments.hasNext()) {
                throw new UsageException(option + " needs a value");
            }
            return arguments.next();
        }

        private double number(String option, double least, double most) throws UsageException {
            String text = value(option);
            double number;
            try {
                number = Double.parseDouble(text);
            } catch (NumberFormatException e) {
                throw new UsageException(option + " is not a number: " + text);
            }
            if (!(number >= least && number <= most)) {
                throw new UsageException(option + " is out of range: " + text);
            }
            return number;
        }

        private int count(String option, int least, int most) throws UsageException {
            double number = number(option, least, most);
            if (number != Math.rint(number)) {
                throw new UsageException(option + " is not a whole number");
            }
            return (int) number;
        }

        private int keyCount(String option) throws UsageException {
            String text = value(option);
            if (text.equals("none")) {
                return 0;
            }
            try {
                int number = Integer.parseInt(text);
                if (number > 0) {
                    return number;
                }
            } catch (NumberFormatException e) {
                // Reported below, with the same words as a number that is too small.
            }
            throw new UsageException(option + " is neither none nor a positive count: " + text);
        }

        private LatencyFrom latencyFrom(String option) throws UsageException {
            String text = value(option);
            return switch (text) {
                case "send" -> LatencyFrom.SEND;
                case "intended" -> LatencyFrom.INTENDED;
                default -> throw new UsageException(option + " is neither send nor intended: " + text);
            };
        }
    }
}

package segstore.load;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * Waits for a server that is starting, and says when its controller port accepted and when its first append was acknowledged.
 * Started before the server, so that the start of this JVM does not count; prints "waiting" on standard error when it is set.
 */
public final class StartupProbe {
    private static final int POLL_MILLIS = 5;

    private StartupProbe() {
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 2) {
            System.err.println("usage: java -cp ... segstore.load.StartupProbe tcp://127.0.0.1:9090 LIMIT_SECONDS");
            System.exit(2);
        }
        URI controller = URI.create(arguments[0]);
        long deadline = System.nanoTime() + (long) (Double.parseDouble(arguments[1]) * 1e9);
        // Loads the client's classes before the clock matters.
        Class.forName("io.pravega.client.stream.impl.EventStreamWriterImpl");
        Class.forName("io.pravega.client.control.impl.ControllerImpl");
        System.err.println("waiting");
        Map<String, Object> result = new LinkedHashMap<>();
        try {
            awaitPort(controller, deadline);
            result.put("port_epoch", LoadDriver.epochSeconds());
            appendOne(controller, deadline);
            result.put("first_ack_epoch", LoadDriver.epochSeconds());
        } catch (Exception e) {
            e.printStackTrace();
            System.err.println("startup probe failed: " + e);
            Runtime.getRuntime().halt(1);
        }
        System.out.println(Json.write(result));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void awaitPort(URI controller, long deadline) throws InterruptedException {
        InetSocketAddress address = new InetSocketAddress(controller.getHost(), controller.getPort());
        while (true) {
            try (Socket socket = new Socket()) {
                socket.connect(address, 1_000);
                return;
            } catch (IOException e) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("the controller port never accepted", e);
                }
                Thread.sleep(POLL_MILLIS);
            }
        }
    }

    private static void appendOne(URI controller, long deadline) throws Exception {
        String name = "probe-" + Long.toHexString(System.nanoTime());
        Target target = new LoadStream(controller, "benchmarks", name, false, false, 0);
        target.create(1, 0);
        CompletableFuture<Void> acknowledged = new CompletableFuture<>();
        target.sender(0).send(null, new byte[8], problem -> {
            if (problem == null) {
                acknowledged.complete(null);
            } else {
                acknowledged.completeExceptionally(problem);
            }
        });
        acknowledged.get(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
    }
}

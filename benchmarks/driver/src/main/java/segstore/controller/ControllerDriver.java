package segstore.controller;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import segstore.load.Json;

/**
 * Asks a controller for one work after the other, as lines on standard input name them, and answers each with a line of JSON.
 *
 * <p>A line is the name of the work and its arguments: {@code begin segments=1000 count=20}. The process stays for as long as its server is
 * measured, so that the client is as warm as the server. A work that fails answers with {@code failure}, and the next may follow.
 */
public final class ControllerDriver {
    private final Map<String, Work> works = new LinkedHashMap<>();

    /** What a line can name. */
    @FunctionalInterface
    interface Work {
        Map<String, Object> run(Arguments arguments) throws Exception;
    }

    private ControllerDriver(Clients clients) {
        new TransactionWorks(clients).addTo(works);
        new StreamWorks(clients).addTo(works);
        new ScopeWorks(clients).addTo(works);
    }

    public static void main(String[] arguments) throws IOException {
        if (arguments.length != 1) {
            System.err.println("usage: java -cp ... segstore.controller.ControllerDriver tcp://127.0.0.1:9090");
            System.exit(2);
        }
        Clients clients = new Clients(URI.create(arguments[0]));
        ControllerDriver driver = new ControllerDriver(clients);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(Json.write(driver.answer(line)));
            System.out.flush();
        }
        // Client threads that still wait for a server must not keep us.
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> answer(String line) {
        try {
            Arguments arguments = Arguments.parse(line);
            Work work = works.get(arguments.work());
            if (work == null) {
                throw new IllegalArgumentException("unknown work " + arguments.work() + "; there are " + works.keySet());
            }
            return work.run(arguments);
        } catch (Exception e) {
            e.printStackTrace();
            return Map.of("failure", line + ": " + e);
        }
    }
}

package compat;

import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.platform.commons.support.AnnotationSupport;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.TestSource;
import org.junit.platform.engine.support.descriptor.ClassSource;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;

/**
 * Writes a line of JSON for each test that ended, and one for each suite, into the file that the
 * system property {@code compat.results} names, at once: others wait for single suites.
 */
public final class Recorder implements TestExecutionListener {
    private static final String FILE = System.getProperty("compat.results");
    private static final String RACE = "race";

    private final Map<String, Long> started = new ConcurrentHashMap<>();

    @Override
    public void executionStarted(TestIdentifier test) {
        started.put(test.getUniqueId(), System.currentTimeMillis());
    }

    @Override
    public void executionSkipped(TestIdentifier test, String reason) {
        TestSource source = test.getSource().orElse(null);
        if (source instanceof MethodSource method) {
            write(line(test, method, "skipped", System.currentTimeMillis(), reason, ""));
        }
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
        TestSource source = test.getSource().orElse(null);
        long start = started.getOrDefault(test.getUniqueId(), System.currentTimeMillis());
        Throwable failure = result.getThrowable().orElse(null);
        if (test.isTest() && source instanceof MethodSource method) {
            write(line(test, method, outcome(result), start, note(failure), trace(failure)));
        } else if (source instanceof ClassSource suite) {
            write(
                    "{\"suite\": %s, \"end\": %s, \"trace\": %s}"
                            .formatted(
                                    quote(simpleName(suite.getClassName())),
                                    quote(outcome(result)),
                                    quote(trace(failure))));
        }
    }

    private static String line(
            TestIdentifier test,
            MethodSource method,
            String result,
            long started,
            String note,
            String trace) {
        Class<?> suite = method.getJavaClass();
        Api api =
                AnnotationSupport.findAnnotation(method.getJavaMethod(), Api.class)
                        .or(() -> AnnotationSupport.findAnnotation(suite, Api.class))
                        .orElseThrow(() -> new IllegalStateException(suite + " has no @Api"));
        boolean race = test.getTags().stream().anyMatch(tag -> tag.getName().equals(RACE));
        String name = method.getMethodName();
        if (test.getDisplayName().startsWith("[")) {
            name += " " + test.getDisplayName();
        }
        return String.format(
                Locale.ROOT,
                "{\"suite\": %s, \"test\": %s, \"api\": %s, \"result\": %s, \"race\": %s,"
                        + " \"started\": %.3f, \"seconds\": %.3f, \"note\": %s, \"trace\": %s}",
                quote(simpleName(method.getClassName())),
                quote(name),
                quote(api.value()),
                quote(result),
                race,
                started / 1e3,
                (System.currentTimeMillis() - started) / 1e3,
                quote(note),
                quote(trace));
    }

    private static String outcome(TestExecutionResult result) {
        return switch (result.getStatus()) {
            case SUCCESSFUL -> "passed";
            case FAILED -> "failed";
            case ABORTED -> "skipped";
        };
    }

    private static String simpleName(String className) {
        return className.substring(className.lastIndexOf('.') + 1);
    }

    private static String note(Throwable failure) {
        return failure == null ? "" : failure.toString().lines().findFirst().orElse("");
    }

    private static String trace(Throwable failure) {
        if (failure == null) {
            return "";
        }
        StringWriter trace = new StringWriter();
        failure.printStackTrace(new PrintWriter(trace));
        return trace.toString();
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') {
                quoted.append('\\').append(each);
            } else if (each < ' ') {
                quoted.append(String.format("\\u%04x", (int) each));
            } else {
                quoted.append(each);
            }
        }
        return quoted.append('"').toString();
    }

    private static synchronized void write(String line) {
        if (FILE == null) {
            return;
        }
        try {
            Files.writeString(
                    Path.of(FILE),
                    line + "\n",
                    StandardOpenOption.CREATE,
                    StandardOpenOption.APPEND);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}

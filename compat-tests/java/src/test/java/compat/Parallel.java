package compat;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorCompletionService;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Tasks that run side by side and end together: the first failure interrupts the others and is what
 * the caller sees.
 */
final class Parallel {
    interface Task {
        void run() throws Exception;
    }

    interface NumberedTask {
        void run(int number) throws Exception;
    }

    private final List<Task> tasks = new ArrayList<>();

    Parallel add(Task task) {
        tasks.add(task);
        return this;
    }

    Parallel add(int count, NumberedTask task) {
        for (int number = 0; number < count; number++) {
            int own = number;
            tasks.add(() -> task.run(own));
        }
        return this;
    }

    void run() throws Exception {
        List<Thread> running = new CopyOnWriteArrayList<>();
        ExecutorService threads =
                Executors.newFixedThreadPool(
                        tasks.size(),
                        task -> {
                            Thread thread = new Thread(task);
                            running.add(thread);
                            return thread;
                        });
        try {
            ExecutorCompletionService<Void> ended = new ExecutorCompletionService<>(threads);
            for (Task task : tasks) {
                Callable<Void> run =
                        () -> {
                            task.run();
                            return null;
                        };
                ended.submit(run);
            }
            for (int count = 0; count < tasks.size(); count++) {
                ended.take().get();
            }
        } catch (InterruptedException timedOut) {
            running.forEach(Parallel::printWhereItIs);
            throw timedOut;
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof Error error) {
                throw error;
            }
            throw failed;
        } finally {
            threads.shutdownNow();
            threads.awaitTermination(10, TimeUnit.SECONDS);
        }
    }

    /** A test that takes too long is interrupted: what its threads wait for says why. */
    private static void printWhereItIs(Thread thread) {
        StringBuilder trace = new StringBuilder("interrupted: " + thread.getName() + "\n");
        for (StackTraceElement place : thread.getStackTrace()) {
            trace.append("\tat ").append(place).append("\n");
        }
        System.err.print(trace);
    }
}

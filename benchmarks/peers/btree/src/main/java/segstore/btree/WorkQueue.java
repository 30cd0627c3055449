package segstore.btree;

import java.util.ArrayDeque;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;

/** Runs the tree's asynchronous steps in the thread that waits for them: there is no faster executor. */
final class WorkQueue implements Executor {
    private final ArrayDeque<Runnable> tasks = new ArrayDeque<>();

    @Override
    public void execute(Runnable task) {
        tasks.addLast(task);
    }

    <T> T await(CompletableFuture<T> future) {
        while (!future.isDone()) {
            tasks.removeFirst().run();
        }
        return future.join();
    }
}

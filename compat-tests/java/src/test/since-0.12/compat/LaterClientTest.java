package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Calls that came to the client with 0.12. */
class LaterClientTest {
    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    @Api("stream manager")
    void anEventIsFetchedByItsPointer() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        TestScope.Events events = scope.readAll(stream, 10);
        for (int number = 0; number < 10; number++) {
            assertEquals(
                    "a:" + number,
                    scope.streams
                            .fetchEvent(events.pointers().get(number), TestScope.TEXT)
                            .get(30, TimeUnit.SECONDS));
        }
    }
}

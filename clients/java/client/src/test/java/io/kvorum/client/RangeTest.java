package io.kvorum.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Flow;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Ranges against a node that does what each test says. */
@Timeout(60)
class RangeTest {
    /** A subscriber whose demand the test steers. */
    private static class Reader implements Flow.Subscriber<Entry> {
        final List<Entry> entries = new CopyOnWriteArrayList<>();
        final CompletableFuture<Void> end = new CompletableFuture<>();
        volatile Flow.Subscription subscription;

        @Override
        public void onSubscribe(Flow.Subscription subscription) {
            this.subscription = subscription;
        }

        @Override
        public void onNext(Entry entry) {
            entries.add(entry);
        }

        @Override
        public void onError(Throwable error) {
            end.completeExceptionally(error);
        }

        @Override
        public void onComplete() {
            end.complete(null);
        }

        <E extends Throwable> E failure(Class<E> type) {
            ExecutionException failed = assertThrows(ExecutionException.class, () -> end.get(20, TimeUnit.SECONDS));
            return assertInstanceOf(type, failed.getCause());
        }
    }

    private static String line(int number, String value) {
        return String.format("{\"key\":\"k%08d\",\"value\":\"%s\",\"version\":\"%s\"}\n",
                number, value, ScriptedServer.VERSION);
    }

    private static void head(OutputStream out) throws IOException {
        out.write("HTTP/1.1 200 X\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n".getBytes());
    }

    private static void chunk(OutputStream out, String text) throws IOException {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        out.write((Integer.toHexString(bytes.length) + "\r\n").getBytes());
        out.write(bytes);
        out.write("\r\n".getBytes());
    }

    private static ScriptedServer.Reply lines(int count, String end) {
        return out -> {
            head(out);
            for (int number = 0; number < count; number++) {
                chunk(out, line(number, "v" + number));
            }
            out.write(end.getBytes());
            out.flush();
            if (!end.startsWith("0\r\n")) {
                throw new IOException("as scripted");
            }
        };
    }

    private static KvorumClient client(ScriptedServer server) {
        return KvorumClient.builder().nodes(server.url()).build();
    }

    @Test
    void demandIsWhatIsGiven() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r -> lines(10, "0\r\n\r\n"));
                KvorumClient client = client(server)) {
            Reader reader = new Reader();
            client.range(Range.from("a b").to("z").limit(99).scope(Range.Scope.LOCAL)).subscribe(reader);
            Thread.sleep(100);
            assertEquals(0, server.requests.size(), "without demand nothing is asked");
            reader.subscription.request(3);
            ClientTest.eventually(() -> reader.entries.size() == 3);
            Thread.sleep(100);
            assertEquals(3, reader.entries.size());
            assertEquals(1, client.inFlight());
            reader.subscription.request(7);
            reader.end.get(5, TimeUnit.SECONDS);
            assertEquals("k00000009", reader.entries.get(9).key().utf8());
            assertEquals("v9", reader.entries.get(9).valueUtf8());
            assertEquals(0, client.inFlight());
            assertEquals("/v0/entities?start=a%20b&end=z&limit=99&scope=local", server.requests.get(0).target());
            assertEquals("application/x-ndjson", server.requests.get(0).headers().get("accept"));
            // Another subscription reads anew, on the same connection.
            Reader again = new Reader();
            client.range("a", "z").subscribe(again);
            again.subscription.request(Long.MAX_VALUE);
            again.end.get(5, TimeUnit.SECONDS);
            assertEquals(10, again.entries.size());
            assertEquals(1, server.connections.get());
        }
    }

    /** A subscriber that asks for more within onNext does not run out of stack. */
    @Test
    void oneAtATime() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r -> lines(20_000, "0\r\n\r\n"));
                KvorumClient client = client(server)) {
            Reader reader = new Reader() {
                private int count;

                @Override
                public void onNext(Entry entry) {
                    assertEquals(String.format("k%08d", count++), entry.key().utf8());
                    subscription.request(1);
                }

                @Override
                public void onComplete() {
                    assertEquals(20_000, count);
                    super.onComplete();
                }
            };
            client.range("a", "z").subscribe(reader);
            reader.subscription.request(1);
            reader.end.get(20, TimeUnit.SECONDS);
        }
    }

    /**
     * A node that offers without end, and subscribers that take little: one stops, one is slow. What the node could
     * send but nobody took is in socket buffers and one hand-over of the HTTP client, and does not grow.
     */
    @Test
    void aSlowSubscriberBoundsMemory() throws Exception {
        String value = "x".repeat(16 << 10);
        AtomicLong sent = new AtomicLong();
        try (ScriptedServer server = new ScriptedServer(r -> out -> {
                    head(out);
                    for (int number = 0; ; number++) {
                        String line = line(number, value);
                        chunk(out, line);
                        sent.addAndGet(line.length());
                    }
                });
                KvorumClient client = client(server)) {
            long bytesMax = 24 << 20;
            Reader stopped = new Reader();
            client.range("a", "z").subscribe(stopped);
            stopped.subscription.request(5);
            ClientTest.eventually(() -> stopped.entries.size() == 5);
            Thread.sleep(500);
            long before = sent.get();
            Thread.sleep(500);
            assertEquals(before, sent.get(), "the node could not send more");
            assertTrue(before < bytesMax, before + " bytes");
            stopped.subscription.cancel();
            ClientTest.eventually(() -> server.closedByClient.get() == 1);
            assertEquals(0, client.inFlight());

            sent.set(0);
            AtomicLong taken = new AtomicLong();
            AtomicLong aheadMax = new AtomicLong();
            Reader slow = new Reader() {
                @Override
                public void onNext(Entry entry) {
                    taken.addAndGet(entry.value().length);
                }
            };
            client.range("a", "z").subscribe(slow);
            // 50 MiB pass by, a few entries at a time.
            for (int number = 0; number < 3200; number += 8) {
                slow.subscription.request(8);
                long wanted = (number + 8L) * value.length();
                ClientTest.eventually(() -> taken.get() == wanted);
                aheadMax.accumulateAndGet(sent.get() - taken.get(), Math::max);
            }
            assertTrue(aheadMax.get() < bytesMax, aheadMax + " bytes");
            slow.subscription.cancel();
        }
    }

    @Test
    void aCutIsNeverAnEnd() throws Exception {
        for (String end : new String[] {"", "5\r\n{\"key"}) {
            try (ScriptedServer server = new ScriptedServer(r -> lines(4, end));
                    KvorumClient client = client(server)) {
                Reader reader = new Reader();
                client.range("a", "z").subscribe(reader);
                reader.subscription.request(Long.MAX_VALUE);
                RangeCutException cut = reader.failure(RangeCutException.class);
                assertEquals(4, cut.entries());
                assertTrue(cut.retrySafe());
                assertEquals(0, client.inFlight());
            }
        }
    }

    @Test
    void failures() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r -> ScriptedServer.answer(400, "", "no"));
                KvorumClient client = KvorumClient.builder().nodes(server.url())
                        .timeout(Duration.ofMillis(300)).build()) {
            Reader refused = new Reader();
            client.range("a", "z").subscribe(refused);
            refused.subscription.request(1);
            refused.failure(RefusedException.class);

            Reader bad = new Reader();
            client.range("a", "z").subscribe(bad);
            bad.subscription.request(0);
            bad.failure(IllegalArgumentException.class);

            server.script(r -> out -> {
                head(out);
                chunk(out, "not json\n");
            });
            Reader garbled = new Reader();
            client.range("a", "z").subscribe(garbled);
            garbled.subscription.request(1);
            garbled.failure(UnexpectedAnswerException.class);

            server.script(r -> out -> {
                head(out);
                chunk(out, line(1, "v"));
                out.flush();
                Thread.sleep(5000);
            });
            Reader late = new Reader();
            client.range("a", "z").subscribe(late);
            late.subscription.request(1);
            ClientTest.eventually(() -> late.entries.size() == 1);
            Thread.sleep(600);
            assertTrue(!late.end.isDone(), "who wants nothing waits for nothing");
            late.subscription.request(1);
            late.failure(OperationTimeoutException.class);

            Reader closed = new Reader();
            client.range("a", "z").subscribe(closed);
            closed.subscription.request(2);
            ClientTest.eventually(() -> closed.entries.size() == 1);
            client.close();
            closed.failure(ClientClosedException.class);
            assertEquals(0, client.inFlight());
            Reader after = new Reader();
            client.range("a", "z").subscribe(after);
            after.subscription.request(1);
            after.failure(ClientClosedException.class);
        }
    }

    /** A range that has not begun is repeated; one that has is not. */
    @Test
    void onlyTheBeginningIsRepeated() throws Exception {
        try (ScriptedServer busy = new ScriptedServer(r -> ScriptedServer.answer(503, "retry-after: 9\r\n", "busy"));
                ScriptedServer well = new ScriptedServer(r -> lines(2, "0\r\n\r\n"));
                KvorumClient client = KvorumClient.builder().nodes(busy.url(), well.url()).build()) {
            for (int turn = 0; turn < 3; turn++) {
                try (Stream<Entry> entries = client.blocking().range(Range.from("a"))) {
                    assertEquals(2, entries.count());
                }
            }
            assertEquals(3, well.requests.size());
        }
    }

    @Test
    void asAStream() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r -> lines(1000, "0\r\n\r\n"));
                KvorumClient client = client(server)) {
            try (Stream<Entry> entries = client.blocking().range(Range.from("a"))) {
                assertEquals(1000, entries.map(Entry::key).distinct().count());
            }
            try (Stream<Entry> entries = client.blocking().range(Range.from("a"))) {
                assertEquals(1, entries.limit(1).count());
            }
            ClientTest.eventually(() -> client.inFlight() == 0);
            server.script(r -> lines(100, ""));
            try (Stream<Entry> entries = client.blocking().range(Range.from("a"))) {
                assertThrows(RangeCutException.class, () -> entries.forEach(entry -> { }));
            }
        }
    }
}

package io.kvorum.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Batches against a node that does what each test says. */
@Timeout(60)
class BatchTest {
    private static final String WRITTEN = "{\"status\":201,\"version\":\"" + ScriptedServer.VERSION + "\"}\n";

    private static ScriptedServer.Reply answers(String lines, String end) {
        return out -> {
            head(out);
            chunk(out, lines);
            out.write(end.getBytes(StandardCharsets.US_ASCII));
            out.flush();
            if (!end.startsWith("0\r\n")) {
                throw new IOException("as scripted");
            }
        };
    }

    private static void head(OutputStream out) throws IOException {
        out.write("HTTP/1.1 200 X\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
                .getBytes(StandardCharsets.US_ASCII));
    }

    private static void chunk(OutputStream out, String text) throws IOException {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        out.write((Integer.toHexString(bytes.length) + "\r\n").getBytes(StandardCharsets.US_ASCII));
        out.write(bytes);
        out.write("\r\n".getBytes(StandardCharsets.US_ASCII));
    }

    private static KvorumClient client(ScriptedServer server) {
        return KvorumClient.builder().nodes(server.url()).build();
    }

    private static <E extends Throwable> E failure(CompletableFuture<?> future, Class<E> type) {
        ExecutionException failed = assertThrows(ExecutionException.class, () -> future.get(20, TimeUnit.SECONDS));
        return assertInstanceOf(type, failed.getCause());
    }

    /** What is sent, and what each kind of answer becomes. */
    @Test
    void linesAndResults() {
        String answers = WRITTEN
                + "{\"status\":200,\"value\":\"ä\",\"version\":\"" + ScriptedServer.VERSION + "\",\"expires\":7}\n"
                + "{\"status\":404,\"error\":\"not_found\",\"message\":\"nothing\"}\n"
                + "{\"status\":412,\"error\":\"e\",\"message\":\"no\",\"version\":\"" + ScriptedServer.VERSION + "\"}\n"
                + "{\"status\":504,\"error\":\"e\",\"message\":\"1 of the 2 replicas that must confirm (of 3)\"}\n"
                + "{\"status\":503,\"error\":\"e\",\"message\":\"busy\"}\n";
        try (ScriptedServer server = new ScriptedServer(r -> answers(answers, "0\r\n\r\n"));
                KvorumClient client = KvorumClient.builder().nodes(server.url())
                        .defaultReplicas(Replicas.of(2, 3)).build()) {
            Version version = Version.parse(ScriptedServer.VERSION).orElseThrow();
            List<BatchResult> results = client.blocking().batch(new Batch()
                    .put("a", "1")
                    .get("b")
                    .get(Key.of(new byte[] {0}), ReadOptions.DEFAULT.replicas(Replicas.of(1, 1)))
                    .putIf("c", "say \"x\"", Condition.version(version))
                    .delete("d")
                    .deleteIf(Key.of("e"), Condition.present(), WriteOptions.DEFAULT));
            assertEquals(
                    "{\"op\":\"put\",\"key\":\"a\",\"replicas\":\"2/3\",\"value\":\"1\"}\n"
                            + "{\"op\":\"get\",\"key\":\"b\",\"replicas\":\"2/3\"}\n"
                            + "{\"op\":\"get\",\"key_base64\":\"AA==\",\"replicas\":\"1/1\"}\n"
                            + "{\"op\":\"put\",\"key\":\"c\",\"replicas\":\"2/3\",\"if_match\":\"" + ScriptedServer.VERSION
                            + "\",\"value_base64\":\"c2F5ICJ4Ig==\"}\n"
                            + "{\"op\":\"delete\",\"key\":\"d\",\"replicas\":\"2/3\"}\n"
                            + "{\"op\":\"delete\",\"key\":\"e\",\"replicas\":\"2/3\",\"if_match\":\"*\"}\n",
                    new String(server.requests.get(0).body(), StandardCharsets.UTF_8));
            assertEquals(version, results.get(0).version().orElseThrow());
            assertEquals("ä", results.get(1).entry().orElseThrow().valueUtf8());
            assertEquals(7, results.get(1).entry().orElseThrow().expires().orElseThrow().toEpochMilli());
            assertTrue(results.get(2).isSuccess() && results.get(2).entry().isEmpty());
            assertInstanceOf(ConditionFailedException.class, results.get(3).failure().orElseThrow());
            assertEquals(version, results.get(3).version().orElseThrow());
            NotEnoughReplicasException unknown =
                    assertInstanceOf(NotEnoughReplicasException.class, results.get(4).failure().orElseThrow());
            assertEquals(1, unknown.confirmed().orElseThrow());
            assertTrue(unknown.mayHaveTakenEffect());
            assertFalse(results.get(5).failure().orElseThrow().mayHaveTakenEffect());
            assertEquals(0, client.inFlight());
        }
    }

    /** An answer that ends early fails, also if it ends as HTTP wants: lines are missing. */
    @Test
    void aCutIsNeverAnEnd() {
        for (String end : new String[] {"", "5\r\n{\"sta", "0\r\n\r\n"}) {
            try (ScriptedServer server = new ScriptedServer(r -> answers(WRITTEN + WRITTEN, end));
                    KvorumClient client = client(server)) {
                Batch batch = new Batch().put("a", "1").put("b", "2").put("c", "3");
                BatchCutException cut = failure(client.batch(batch), BatchCutException.class);
                assertEquals(2, cut.results());
                assertTrue(cut.mayHaveTakenEffect());
                assertFalse(cut.retrySafe());
                assertEquals(0, client.inFlight());
                assertEquals(1, server.requests.size());
            }
        }
    }

    @Test
    void nonsenseIsRefused() {
        for (String lines : new String[] {
            "not json\n", "{\"status\":201}\n", "{\"status\":9999}\n", "{\"status\":200,\"version\":\"1\"}\n", WRITTEN + WRITTEN
        }) {
            try (ScriptedServer server = new ScriptedServer(r -> answers(lines, "0\r\n\r\n"));
                    KvorumClient client = client(server)) {
                failure(client.batch(new Batch().put("a", "1")), UnexpectedAnswerException.class);
            }
        }
    }

    @Test
    void limits() {
        Batch many = new Batch();
        for (int n = 0; n < Batch.LINES_MAX; n++) {
            many.get("k");
        }
        assertThrows(IllegalStateException.class, () -> many.get("k"));
        assertEquals(Batch.LINES_MAX, many.size());
        Batch large = new Batch();
        byte[] value = new byte[8 << 20];
        for (int n = 0; n < 5; n++) {
            large.put(Key.of("k"), value, WriteOptions.DEFAULT);
        }
        assertThrows(IllegalStateException.class, () -> large.put(Key.of("k"), value, WriteOptions.DEFAULT));
        WriteOptions late = WriteOptions.DEFAULT.timeout(Duration.ofSeconds(1));
        assertThrows(IllegalArgumentException.class, () -> large.delete(Key.of("k"), late));
    }

    /** Results that nobody takes stay in the node. */
    @Test
    void aSlowTakerBoundsMemory() throws Exception {
        String line = WRITTEN.replace("201", "200").replace("}", ",\"value\":\"" + "x".repeat(16 << 10) + "\"}");
        AtomicLong sent = new AtomicLong();
        try (ScriptedServer server = new ScriptedServer(r -> out -> {
                    head(out);
                    for (int number = 0; number < Batch.LINES_MAX; number++) {
                        chunk(out, line);
                        sent.addAndGet(line.length());
                    }
                    out.write("0\r\n\r\n".getBytes(StandardCharsets.US_ASCII));
                });
                KvorumClient client = client(server)) {
            Batch batch = new Batch();
            for (int n = 0; n < Batch.LINES_MAX; n++) {
                batch.get("k" + n);
            }
            CountDownLatch goOn = new CountDownLatch(1);
            AtomicInteger taken = new AtomicInteger();
            CompletableFuture<Void> done = client.batch(batch, result -> {
                if (taken.incrementAndGet() == 5) {
                    assertTrue(waits(goOn));
                }
            });
            ClientTest.eventually(() -> taken.get() == 5);
            Thread.sleep(500);
            long before = sent.get();
            Thread.sleep(500);
            assertEquals(before, sent.get(), "the node could not send more");
            assertTrue(before < 24 << 20, before + " bytes");
            goOn.countDown();
            done.get(30, TimeUnit.SECONDS);
            assertEquals(Batch.LINES_MAX, taken.get());
        }
    }

    private static boolean waits(CountDownLatch latch) {
        try {
            return latch.await(30, TimeUnit.SECONDS);
        } catch (InterruptedException interrupted) {
            return false;
        }
    }

    /** Whoever ends a batch early ends its connection: by throwing, by cancelling, by too many values in one list. */
    @Test
    void endedEarly() throws Exception {
        ScriptedServer.Script endless = r -> out -> {
            head(out);
            chunk(out, WRITTEN);
            out.flush();
            Thread.sleep(60_000);
        };
        Batch batch = new Batch().put("a", "1").put("b", "2");
        try (ScriptedServer server = new ScriptedServer(endless); KvorumClient client = client(server)) {
            RuntimeException own = new RuntimeException("mine");
            CompletableFuture<Void> thrown = client.batch(batch, result -> {
                throw own;
            });
            assertSame(own, failure(thrown, RuntimeException.class));
            AtomicInteger taken = new AtomicInteger();
            CompletableFuture<Void> cancelled = client.batch(batch, result -> taken.incrementAndGet());
            ClientTest.eventually(() -> taken.get() == 1);
            cancelled.cancel(true);
            CompletableFuture<List<BatchResult>> listed = client.batch(batch);
            ClientTest.eventually(() -> server.requests.size() == 3);
            listed.cancel(true);
            ClientTest.eventually(() -> client.inFlight() == 0);
        }
        String value = "{\"status\":200,\"value\":\"" + "x".repeat(900) + "\",\"version\":\"" + ScriptedServer.VERSION + "\"}\n";
        try (ScriptedServer server = new ScriptedServer(r -> answers(value + value, "0\r\n\r\n"));
                KvorumClient client = KvorumClient.builder().nodes(server.url()).answerBytesMax(1024).build()) {
            Batch reads = new Batch().get("a").get("b");
            failure(client.batch(reads), UnexpectedAnswerException.class);
            client.batch(reads, result -> { }).get(20, TimeUnit.SECONDS);
        }
    }

    /** What was certainly not begun is repeated; what may have been is repeated only if it reads. */
    @Test
    void repetitions() throws Exception {
        try (ScriptedServer busy = new ScriptedServer(r -> ScriptedServer.answer(503, "retry-after: 9\r\n", "busy"));
                ScriptedServer well = new ScriptedServer(r -> answers(WRITTEN, "0\r\n\r\n"));
                KvorumClient client = KvorumClient.builder().nodes(busy.url(), well.url()).build()) {
            for (int turn = 0; turn < 3; turn++) {
                assertEquals(1, client.batch(new Batch().put("a", "1")).get(20, TimeUnit.SECONDS).size());
            }
            assertEquals(3, well.requests.size());
        }
        try (ScriptedServer server = new ScriptedServer(r -> ScriptedServer.hangUp());
                KvorumClient client = KvorumClient.builder().nodes(server.url())
                        .retry(RetryPolicy.DEFAULT.repeatUnknownWrites(true)).build()) {
            KvorumException write = failure(client.batch(new Batch().put("a", "1")), UnreachableException.class);
            assertTrue(write.mayHaveTakenEffect());
            assertEquals(1, write.attempts());
            KvorumException read = failure(client.batch(new Batch().get("a")), UnreachableException.class);
            assertFalse(read.mayHaveTakenEffect());
            assertTrue(read.attempts() > 1);
            assertEquals(0, client.batch(new Batch()).get().size());
        }
    }
}

package io.kvorum.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.ServerSocket;
import java.net.http.HttpRequest.BodyPublishers;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The client against nodes that do what each test says. */
@Timeout(30)
class ClientTest {
    private static KvorumClient.Builder client(ScriptedServer... servers) {
        KvorumClient.Builder builder = KvorumClient.builder();
        for (ScriptedServer server : servers) {
            builder.nodes(server.url());
        }
        return builder;
    }

    private static <E extends Throwable> E failure(Class<E> type, CompletableFuture<?> future) throws Exception {
        ExecutionException failed =
                assertThrows(ExecutionException.class, () -> future.get(20, TimeUnit.SECONDS));
        return assertInstanceOf(type, failed.getCause());
    }

    static void eventually(BooleanSupplier condition) throws InterruptedException {
        for (int tenMillis = 0; tenMillis < 1000 && !condition.getAsBoolean(); tenMillis++) {
            Thread.sleep(10);
        }
        assertTrue(condition.getAsBoolean());
    }

    /** A port at which nobody listens. */
    private static int freePort() throws Exception {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }

    @Test
    void requestsAreWhatTheContractSays() throws Exception {
        try (ScriptedServer server = new ScriptedServer(request ->
                        request.method().equals("GET") ? ScriptedServer.value("hello") : ScriptedServer.written(request));
                KvorumClient client = client(server).defaultReplicas(Replicas.of(2, 3)).build()) {
            Entry entry = client.get("a b+/é").get().orElseThrow();
            assertEquals("hello", entry.valueUtf8());
            assertEquals(ScriptedServer.VERSION, entry.version().toString());
            WriteOptions options = WriteOptions.DEFAULT.replicas(Replicas.of(1, 1)).ttl(Duration.ofMillis(1500));
            client.put(new byte[] {0, (byte) 0xff}, new byte[] {1, 2}, options).get();
            client.put(ByteBuffer.wrap(new byte[] {'k'}), ByteBuffer.allocate(0),
                    WriteOptions.DEFAULT.ttl(Duration.ofMinutes(1))).get();
            client.put("k", BodyPublishers.fromPublisher(BodyPublishers.ofString("streamed"))).get();
            client.delete("k").get();
            assertThrows(IllegalArgumentException.class, () -> client.delete("k", options));
            List<String> lines = server.requests.stream().map(r -> r.method() + " " + r.target()).toList();
            assertEquals(List.of(
                    "GET /v0/entity?id=a%20b%2B%2F%C3%A9&replicas=2/3",
                    "PUT /v0/entity?id=%00%FF&replicas=1/1&ttl=1500ms",
                    "PUT /v0/entity?id=k&replicas=2/3&ttl=60s",
                    "PUT /v0/entity?id=k&replicas=2/3",
                    "DELETE /v0/entity?id=k&replicas=2/3"), lines);
            assertArrayEquals(new byte[] {1, 2}, server.requests.get(1).body());
            assertEquals("0", server.requests.get(2).headers().get("content-length"));
            assertEquals("streamed", new String(server.requests.get(3).body(), StandardCharsets.UTF_8));
            assertEquals(1, server.connections.get(), "one after the other goes over one connection");
        }
    }

    /** Every request has the client's token, and no text of the client does. */
    @Test
    void tokenIsSent() throws Exception {
        try (ScriptedServer server = new ScriptedServer(request -> ScriptedServer.value("hello"));
                KvorumClient client = client(server).token(" billing.s3cret\n").build();
                KvorumClient without = client(server).build()) {
            client.get("k").get();
            without.get("k").get();
            assertEquals("Bearer billing.s3cret", server.requests.get(0).headers().get("authorization"));
            assertFalse(server.requests.get(1).headers().containsKey("authorization"));
            assertFalse(client.toString().contains("s3cret"));
        }
        for (String wrong : new String[] {"", "s3cret", "a.b c", "a.b\r\nX: y"}) {
            Throwable refused = assertThrows(IllegalArgumentException.class, () -> KvorumClient.builder().token(wrong));
            assertFalse(refused.getMessage().contains("s3cret"));
        }
    }

    /** Whatever instant a node shows, a GET and a HEAD can be read and printed. */
    @Test
    void expiriesBeyondEveryDate() throws Exception {
        for (String millis : new String[] {"9007199254740991", "18446744073709551615"}) {
            try (ScriptedServer server = new ScriptedServer(r -> out -> out.write(("HTTP/1.1 200 OK\r\netag: \""
                            + "ffffffffffffffff-ffffffffffffffff\"\r\ncontent-length: 0\r\nkvorum-expires: " + millis
                            + "\r\n\r\n").getBytes(StandardCharsets.ISO_8859_1)));
                    KvorumClient client = client(server).build()) {
                Head head = client.head("k").get().orElseThrow();
                assertTrue(head.expires().orElseThrow().toEpochMilli() >= 9007199254740991L, head.toString());
                Entry entry = client.get("k").get().orElseThrow();
                assertTrue(entry.expires().orElseThrow().toEpochMilli() >= 9007199254740991L, entry.toString());
            }
        }
        Duration tooLong = Duration.ofDays(36500).plusNanos(1);
        assertThrows(IllegalArgumentException.class, () -> WriteOptions.DEFAULT.ttl(tooLong));
        assertEquals(Duration.ofDays(36500), WriteOptions.DEFAULT.ttl(Duration.ofDays(36500)).ttl().orElseThrow());
    }

    /** A HEAD tells the length of a value that it does not bring. */
    @Test
    void headIsAllButTheValue() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r -> out -> out.write(("HTTP/1.1 200 OK\r\netag: \""
                        + ScriptedServer.VERSION + "\"\r\ncontent-length: 12345678901\r\nkvorum-expires: 1500\r\n\r\n")
                        .getBytes(StandardCharsets.ISO_8859_1)));
                KvorumClient client = client(server).build()) {
            for (int time = 0; time < 2; time++) {
                Head head = client.head("k", ReadOptions.DEFAULT.replicas(Replicas.of(1, 2))).get().orElseThrow();
                assertEquals(12_345_678_901L, head.valueBytes());
                assertEquals(ScriptedServer.VERSION, head.version().toString());
                assertEquals(1500, head.expires().orElseThrow().toEpochMilli());
            }
            assertEquals("HEAD /v0/entity?id=k&replicas=1/2",
                    server.requests.get(0).method() + " " + server.requests.get(0).target());
            assertEquals(1, server.connections.get(), "no body follows, so the connection is used again");
        }
    }

    @Test
    void absentIsEmpty() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r -> ScriptedServer.answer(404, "", "no value"));
                KvorumClient client = client(server).build()) {
            assertTrue(client.get("k").get().isEmpty());
            assertInstanceOf(RefusedException.class, failure(KvorumException.class, client.put("k", "v")));
        }
    }

    /** 503 says that nothing was done: even a write goes on to the next node. */
    @Test
    void aBusyNodeIsPassedOver() throws Exception {
        try (ScriptedServer busy = new ScriptedServer(r -> ScriptedServer.answer(503, "retry-after: 1\r\n", "busy"));
                ScriptedServer well = new ScriptedServer(ScriptedServer::written);
                KvorumClient client = client(busy, well).build()) {
            for (int write = 0; write < 10; write++) {
                client.put("k", "v").get();
            }
            assertEquals(10, well.requests.size());
            assertTrue(busy.requests.size() <= 1, "it is left alone for the second that it asked for");
        }
    }

    @Test
    void aNodeAloneIsWaitedForAsLongAsItAsks() throws Exception {
        AtomicInteger count = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(r -> count.incrementAndGet() == 1
                        ? ScriptedServer.answer(503, "retry-after: 1\r\n", "busy") : ScriptedServer.written(r));
                KvorumClient client = client(server).build()) {
            long begun = System.nanoTime();
            client.put("k", "v").get();
            assertTrue(System.nanoTime() - begun >= 1_000_000_000L);
            count.set(0);
            // Within the deadline it cannot be had: what is known is told at once.
            OverloadedException error = failure(OverloadedException.class,
                    client.put("k", "v", WriteOptions.DEFAULT.timeout(Duration.ofMillis(500))));
            assertEquals(Duration.ofSeconds(1), error.retryAfter().orElseThrow());
            assertFalse(error.mayHaveTakenEffect());
        }
    }

    /** A connection lost on the way: a read goes on, a write does not unless told to, and says what may be. */
    @Test
    void lostConnections() throws Exception {
        try (ScriptedServer bad = new ScriptedServer(r -> ScriptedServer.hangUp());
                KvorumClient client = client(bad).build()) {
            UnreachableException error = failure(UnreachableException.class, client.put("k", "v"));
            assertTrue(error.mayHaveTakenEffect());
            assertTrue(error.retrySafe());
            assertEquals("PUT \"k\"", error.attempted());
            assertEquals(bad.url(), error.node().orElseThrow().toString());
            assertEquals(1, bad.requests.size());
        }
        try (ScriptedServer bad = new ScriptedServer(r -> ScriptedServer.hangUp());
                ScriptedServer well = new ScriptedServer(r ->
                        r.method().equals("GET") ? ScriptedServer.value("v") : ScriptedServer.written(r));
                KvorumClient client = client(bad, well)
                        .retry(RetryPolicy.DEFAULT.repeatUnknownWrites(true)).build()) {
            for (int turn = 0; turn < 4; turn++) {
                assertEquals("v", client.get("k").get().orElseThrow().valueUtf8());
                client.put("k", "v").get();
            }
        }
    }

    /** That an earlier attempt was of unknown outcome is not forgotten when the last one was refused. */
    @Test
    void aDoubtfulAttemptIsNotForgotten() throws Exception {
        AtomicInteger count = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(r -> count.incrementAndGet() == 1
                        ? ScriptedServer.answer(504, "kvorum-replicas: 1/3\r\n", "Not Enough Replicas")
                        : ScriptedServer.answer(400, "", "no"));
                KvorumClient client = client(server)
                        .retry(RetryPolicy.DEFAULT.repeatUnknownWrites(true)).build()) {
            RefusedException error = failure(RefusedException.class, client.put("k", "v"));
            assertTrue(error.mayHaveTakenEffect());
            assertEquals(2, error.attempts());
        }
    }

    @Test
    void tooFewReplicas() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r -> ScriptedServer.answer(504, "kvorum-replicas: 1/3\r\n",
                        "Not Enough Replicas: 1 of the 2 replicas that must confirm (of 3) did so in 1000 ms"));
                KvorumClient client = client(server).build()) {
            NotEnoughReplicasException write = failure(NotEnoughReplicasException.class, client.delete("k"));
            assertEquals(1, write.confirmed().orElseThrow());
            assertEquals(2, write.required().orElseThrow());
            assertEquals(3, write.from().orElseThrow());
            assertTrue(write.mayHaveTakenEffect());
            assertEquals(1, server.requests.size());
            NotEnoughReplicasException read = failure(NotEnoughReplicasException.class, client.get("k"));
            assertFalse(read.mayHaveTakenEffect());
            assertEquals(4, read.attempts());
        }
    }

    /** A value that can be sent only once is not sent twice, but it moves on where none of it was sent. */
    @Test
    void aStreamedValueIsSentOnce() throws Exception {
        try (ScriptedServer busy = new ScriptedServer(r -> ScriptedServer.answer(503, "", "busy"));
                KvorumClient client = client(busy).build()) {
            failure(OverloadedException.class, client.put("k", BodyPublishers.ofString("v")));
            assertEquals(1, busy.requests.size());
            failure(OverloadedException.class, client.put("k", "v"));
            assertEquals(5, busy.requests.size());
        }
        try (ScriptedServer well = new ScriptedServer(ScriptedServer::written);
                KvorumClient client = client(well).nodes("http://127.0.0.1:" + freePort()).build()) {
            for (int turn = 0; turn < 4; turn++) {
                client.put("k", BodyPublishers.ofString("v")).get();
            }
        }
    }

    /** A node that is down is set aside: later operations do not try it; a probe takes it back. */
    @Test
    void aDeadNodeIsSetAsideAndTakenBack() throws Exception {
        int port = freePort();
        try (ScriptedServer well = new ScriptedServer(ScriptedServer::written);
                KvorumClient client = client(well).nodes("http://127.0.0.1:" + port).build()) {
            for (int turn = 0; turn < 6; turn++) {
                client.put("k", "v").get();
            }
            assertEquals(1, client.nodesAside());
            try (ScriptedServer back = new ScriptedServer(ScriptedServer::written, port)) {
                back.well(false);
                Thread.sleep(700);
                assertEquals(1, client.nodesAside(), "it is there, but says that it is not ready");
                back.well(true);
                eventually(() -> client.nodesAside() == 0);
                for (int turn = 0; turn < 6; turn++) {
                    client.put("k", "v").get();
                }
                assertEquals(3, back.requests.size(), "round robin");
            }
        }
    }

    @Test
    void allDownIsAnErrorAndNothingWasDone() throws Exception {
        try (KvorumClient client = KvorumClient.builder().nodes("http://127.0.0.1:" + freePort()).build()) {
            UnreachableException error = failure(UnreachableException.class, client.put("k", "v"));
            assertFalse(error.mayHaveTakenEffect());
            assertEquals(4, error.attempts());
        }
    }

    @Test
    void oneDeadlineOverAll() throws Exception {
        try (ScriptedServer slow = new ScriptedServer(r -> ScriptedServer.stall());
                KvorumClient client = client(slow).timeout(Duration.ofMillis(300)).build()) {
            long begun = System.nanoTime();
            OperationTimeoutException write = failure(OperationTimeoutException.class, client.put("k", "v"));
            assertTrue(write.mayHaveTakenEffect());
            assertFalse(failure(OperationTimeoutException.class, client.get("k")).mayHaveTakenEffect());
            assertTrue(System.nanoTime() - begun < 2_000_000_000L);
            assertEquals(0, client.inFlight());
        }
    }

    /** A node that hangs: a read loses its patience and asks another; the node is set aside. */
    @Test
    void aReadDoesNotWaitForANodeThatHangs() throws Exception {
        try (ScriptedServer hung = new ScriptedServer(r -> ScriptedServer.stall());
                ScriptedServer well = new ScriptedServer(r -> ScriptedServer.value("v"));
                KvorumClient client = client(hung, well)
                        .retry(RetryPolicy.DEFAULT.patience(Duration.ofMillis(200))).build()) {
            hung.well(false);
            for (int turn = 0; turn < 4; turn++) {
                assertEquals("v", client.get("k").get().orElseThrow().valueUtf8());
            }
            assertEquals(1, hung.requests.size());
            assertEquals(1, client.nodesAside());
        }
    }

    /** A slow read is asked of a second node; the first one's exchange is cancelled. The budget bounds how often. */
    @Test
    void hedgedReads() throws Exception {
        try (ScriptedServer slow = new ScriptedServer(r -> ScriptedServer.after(1500, ScriptedServer.value("slow")));
                ScriptedServer fast = new ScriptedServer(r -> ScriptedServer.value("fast"));
                KvorumClient client = client(slow, fast).hedging(Hedging.after(Duration.ofMillis(50), 0.01)).build()) {
            List<String> values = new ArrayList<>();
            for (int turn = 0; turn < 4; turn++) {
                values.add(client.get("k").get().orElseThrow().valueUtf8());
            }
            assertEquals(2, slow.requests.size());
            assertEquals(1, values.stream().filter("slow"::equals).count(), "the budget was one: " + values);
            assertEquals(3, fast.requests.size());
        }
    }

    @Test
    void aHedgedReadSurvivesOneFailure() throws Exception {
        AtomicInteger count = new AtomicInteger();
        ScriptedServer.Script script = r -> count.incrementAndGet() == 1
                ? ScriptedServer.after(300, ScriptedServer.answer(400, "", "no"))
                : ScriptedServer.after(600, ScriptedServer.value("v"));
        try (ScriptedServer one = new ScriptedServer(script);
                ScriptedServer other = new ScriptedServer(script);
                KvorumClient client = client(one, other).hedging(Hedging.after(Duration.ofMillis(50), 1)).build()) {
            assertEquals("v", client.get("k").get().orElseThrow().valueUtf8());
        }
    }

    /** To cancel the future closes the connection, and gives the place back. */
    @Test
    void cancellingEndsTheExchange() throws Exception {
        CompletableFuture<Void> came = new CompletableFuture<>();
        CompletableFuture<Void> gone = new CompletableFuture<>();
        try (ScriptedServer server = new ScriptedServer(r -> out -> {
                    came.complete(null);
                    byte[] head = "HTTP/1.1 200 X\r\ncontent-length: 1000000000\r\n\r\n".getBytes();
                    try {
                        if (r.target().contains("body")) {
                            out.write(head);
                        }
                        while (true) {
                            // Only to a closed connection this fails.
                            out.write(r.target().contains("body") ? "x".getBytes() : "HTTP/1.1 100 X\r\n\r\n".getBytes());
                            Thread.sleep(20);
                        }
                    } catch (java.io.IOException closed) {
                        gone.complete(null);
                        throw closed;
                    }
                });
                KvorumClient client = client(server).build()) {
            CompletableFuture<?> read = client.get("within-the-body");
            came.get(5, TimeUnit.SECONDS);
            Thread.sleep(200);
            assertEquals(1, client.inFlight());
            assertTrue(read.cancel(true));
            gone.get(5, TimeUnit.SECONDS);
            assertEquals(0, client.inFlight());
            assertEquals(0, client.nodesAside(), "the node has done nothing wrong");
        }
    }

    @Test
    void cancellingBeforeTheAnswerEndsTheExchange() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r -> ScriptedServer.after(500, ScriptedServer.written(r)));
                KvorumClient client = client(server).build()) {
            CompletableFuture<?> write = client.put("k", "v");
            eventually(() -> server.requests.size() == 1);
            write.cancel(true);
            assertEquals(0, client.inFlight());
            // The node finds the connection closed when it looks for the next request.
            eventually(() -> server.closedByClient.get() == 1);
            client.put("k", "v").get();
            assertEquals(2, server.connections.get());
            assertEquals(1, server.closedByClient.get());
        }
    }

    @Test
    void closingEndsEverything() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r -> ScriptedServer.stall())) {
            KvorumClient client = client(server).maxInFlight(1, Overflow.waitUpTo(1)).build();
            CompletableFuture<?> write = client.put("k", "v");
            CompletableFuture<?> waiting = client.get("k");
            eventually(() -> server.requests.size() == 1);
            client.close();
            client.close();
            assertTrue(failure(ClientClosedException.class, write).mayHaveTakenEffect());
            assertFalse(failure(ClientClosedException.class, waiting).mayHaveTakenEffect());
            assertFalse(failure(ClientClosedException.class, client.get("k")).retrySafe());
        }
    }

    /** Excess waits in order, up to a bound, and within its deadline; or it fails. */
    @Test
    void flightIsBounded() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r -> ScriptedServer.after(100, ScriptedServer.value("v")));
                KvorumClient client = client(server).maxInFlight(2, Overflow.waitUpTo(3)).build()) {
            List<CompletableFuture<?>> reads = new ArrayList<>();
            for (int read = 0; read < 5; read++) {
                reads.add(client.get("k" + read));
            }
            assertEquals(2, client.inFlight());
            assertEquals(3, client.waiting());
            TooManyInFlightException error = failure(TooManyInFlightException.class, client.get("k5"));
            assertTrue(error.retrySafe());
            assertEquals(0, error.attempts());
            for (CompletableFuture<?> read : reads) {
                read.get();
            }
            assertEquals(0, client.inFlight());
            assertTrue(server.connections.get() <= 4, "connections are used again: " + server.connections);
        }
        try (ScriptedServer server = new ScriptedServer(r -> ScriptedServer.stall());
                KvorumClient client = client(server).maxInFlight(1, Overflow.waitUpTo(9)).build()) {
            CompletableFuture<?> first = client.get("k");
            CompletableFuture<?> impatient = client.put("k", "v", WriteOptions.DEFAULT.timeout(Duration.ofMillis(100)));
            OperationTimeoutException error = failure(OperationTimeoutException.class, impatient);
            assertFalse(error.mayHaveTakenEffect(), error.getMessage());
            CompletableFuture<?> cancelled = client.get("k");
            cancelled.cancel(true);
            assertEquals(0, client.waiting());
            first.cancel(true);
            assertEquals(0, client.inFlight());
        }
        try (ScriptedServer server = new ScriptedServer(r -> ScriptedServer.stall());
                KvorumClient client = client(server).maxInFlight(1, Overflow.FAIL).build()) {
            client.get("k");
            failure(TooManyInFlightException.class, client.get("k"));
        }
    }

    /** What depends on a future may begin the next operation at once, also where one place is all there is. */
    @Test
    void aPlaceIsFreeBeforeTheFutureIsDone() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r -> ScriptedServer.value("v"));
                KvorumClient client = client(server).maxInFlight(1, Overflow.FAIL).build()) {
            CompletableFuture<?> chain = client.get("k");
            for (int link = 0; link < 50; link++) {
                chain = chain.thenCompose(done -> client.get("k"));
            }
            chain.get(10, TimeUnit.SECONDS);
            assertEquals(1, server.connections.get(), "one place is one connection");
        }
    }

    /** The topology is learned from the first answer, followed, and learned anew when its epoch changes. */
    @Test
    void requestsGoToReplicas() throws Exception {
        AtomicInteger descriptions = new AtomicInteger();
        List<ScriptedServer> servers = new ArrayList<>();
        List<String> urls = new ArrayList<>();
        String[] epoch = {"e1"};
        byte[][] lists = {{0, 0, 0, 1}};
        for (int n = 0; n < 3; n++) {
            ScriptedServer server = new ScriptedServer(r -> {
                if (r.target().startsWith("/v0/topology")) {
                    descriptions.incrementAndGet();
                    return ScriptedServer.answer(200, "kvorum-epoch: " + epoch[0] + "\r\n",
                            TopologyTest.describe(epoch[0], urls, lists[0], 1, 1));
                }
                return ScriptedServer.answer(200,
                        "kvorum-epoch: " + epoch[0] + "\r\netag: \"" + ScriptedServer.VERSION + "\"\r\n", "v");
            });
            servers.add(server);
            urls.add(server.url());
        }
        // Token bits: "a" begins with 0, "ключ" with 1. Only the last node is configured: the others are learned.
        try (KvorumClient client = client(servers.get(2)).defaultReplicas(Replicas.of(1, 1)).build()) {
            assertTrue(client.topologyEpoch().isEmpty());
            client.get("a").get();
            eventually(() -> client.topologyEpoch().equals(java.util.Optional.of("e1")));
            for (int read = 0; read < 10; read++) {
                client.get("a").get();
                client.get("ключ").get();
            }
            assertEquals(List.of(10, 10, 1), servers.stream().map(s -> s.requests.size()).toList());
            assertEquals(1, descriptions.get());
            epoch[0] = "e2";
            lists[0] = new byte[] {0, 2, 0, 2};
            Thread.sleep(1100); // The topology is asked for once a second at most.
            client.get("a").get();
            eventually(() -> client.topologyEpoch().equals(java.util.Optional.of("e2")));
            servers.forEach(server -> server.requests.clear());
            client.get("a").get();
            client.get("ключ").get();
            assertEquals(List.of(0, 0, 2), servers.stream().map(s -> s.requests.size()).toList());
            // Its one replica gone, any node will do.
            servers.get(2).close();
            client.get("a").get();
            client.get("a").get();
        } finally {
            servers.forEach(ScriptedServer::close);
        }
    }

    /**
     * Requests that name no replicas go to as many nodes of the preference list as the node's default says. A node that
     * does not say it is taken for one with the default 3, which are all nodes here: requests go round.
     */
    @Test
    void theDefaultOfTheNodeIsUsed() throws Exception {
        for (boolean isSaid : new boolean[] {true, false}) {
            List<ScriptedServer> servers = new ArrayList<>();
            List<String> urls = new ArrayList<>();
            for (int n = 0; n < 3; n++) {
                ScriptedServer server = new ScriptedServer(r -> {
                    if (r.target().startsWith("/v0/topology")) {
                        byte[] lists = {0, 0, 0, 1, 0, 2, 0, 1, 0, 2, 0, 0};
                        String description = TopologyTest.describe("e1", urls, lists, 1, 3);
                        return ScriptedServer.answer(200, "kvorum-epoch: e1\r\n",
                                isSaid ? TopologyTest.withDefaultFrom(description, 1) : description);
                    }
                    return ScriptedServer.answer(200,
                            "kvorum-epoch: e1\r\netag: \"" + ScriptedServer.VERSION + "\"\r\n", "v");
                });
                servers.add(server);
                urls.add(server.url());
            }
            try (KvorumClient client = client(servers.get(2)).build()) {
                client.get("a").get();
                eventually(() -> client.topologyEpoch().equals(java.util.Optional.of("e1")));
                servers.forEach(server -> server.requests.clear());
                for (int read = 0; read < 6; read++) {
                    client.get("a").get();
                }
                List<Integer> counts = servers.stream().map(s -> s.requests.size()).toList();
                assertEquals(isSaid ? List.of(6, 0, 0) : List.of(2, 2, 2), counts);
            } finally {
                servers.forEach(ScriptedServer::close);
            }
        }
    }

    /** Conditional writes of one key meet at its first replica, which lets them share their rounds; reads go round. */
    @Test
    void rivalsMeetAtTheFirstReplica() throws Exception {
        List<ScriptedServer> servers = new ArrayList<>();
        List<String> urls = new ArrayList<>();
        for (int n = 0; n < 3; n++) {
            ScriptedServer server = new ScriptedServer(r -> {
                if (r.target().startsWith("/v0/topology")) {
                    byte[] lists = {0, 1, 0, 0, 0, 2, 0, 1, 0, 0, 0, 2};
                    return ScriptedServer.answer(
                            200, "kvorum-epoch: e1\r\n", TopologyTest.describe("e1", urls, lists, 1, 3));
                }
                return ScriptedServer.answer(r.method().equals("PUT") ? 201 : 200,
                        "kvorum-epoch: e1\r\netag: \"" + ScriptedServer.VERSION + "\"\r\n", "v");
            });
            servers.add(server);
            urls.add(server.url());
        }
        try (KvorumClient client = client(servers.get(2)).build()) {
            client.get("a").get();
            eventually(() -> client.topologyEpoch().equals(java.util.Optional.of("e1")));
            servers.forEach(server -> server.requests.clear());
            for (int write = 0; write < 6; write++) {
                client.putIf("a", "v", Condition.present()).get();
            }
            assertEquals(List.of(0, 6, 0), servers.stream().map(s -> s.requests.size()).toList());
            for (int read = 0; read < 6; read++) {
                client.get("a").get();
            }
            assertEquals(List.of(2, 8, 2), servers.stream().map(s -> s.requests.size()).toList());
        } finally {
            servers.forEach(ScriptedServer::close);
        }
    }

    @Test
    void aTopologyThatIsNotUnderstoodDoesNoHarm() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r -> r.target().startsWith("/v0/topology")
                        ? ScriptedServer.answer(200, "", "{\"epoch\":\"x\"}")
                        : ScriptedServer.answer(200,
                                "kvorum-epoch: x\r\netag: \"" + ScriptedServer.VERSION + "\"\r\n", "v"));
                KvorumClient client = client(server).build()) {
            for (int read = 0; read < 20; read++) {
                client.get("k").get();
            }
            assertTrue(client.topologyEpoch().isEmpty());
        }
    }

    @Test
    void strangeAnswers() throws Exception {
        String[] answer = {""};
        try (ScriptedServer server = new ScriptedServer(r -> out -> {
                    out.write(answer[0].getBytes(StandardCharsets.US_ASCII));
                    throw new java.io.IOException("as scripted");
                });
                KvorumClient client = client(server).answerBytesMax(1024)
                        .retry(RetryPolicy.NONE).routing(false).build()) {
            answer[0] = "HTTP/1.1 200 X\r\ncontent-length: 1\r\n\r\nv";
            failure(UnexpectedAnswerException.class, client.get("no-version"));
            answer[0] = "HTTP/1.1 200 X\r\netag: \"" + ScriptedServer.VERSION + "\"\r\ncontent-length: 2000\r\n\r\n"
                    + "x".repeat(2000);
            failure(UnexpectedAnswerException.class, client.get("too-large"));
            answer[0] = "HTTP/1.1 200 X\r\netag: \"" + ScriptedServer.VERSION + "\"\r\ncontent-length: 9\r\n\r\nhalf";
            failure(UnreachableException.class, client.get("cut"));
            answer[0] = "garbage\r\n\r\n";
            failure(KvorumException.class, client.get("garbage"));
            answer[0] = "HTTP/1.1 302 X\r\nlocation: /\r\ncontent-length: 0\r\n\r\n";
            assertTrue(failure(UnexpectedAnswerException.class, client.put("k", "v")).mayHaveTakenEffect());
        }
    }

    /** The blocking facade throws what the future would fail with, and refuses to wait on the client's own threads. */
    @Test
    void blocking() throws Exception {
        try (ScriptedServer server = new ScriptedServer(r ->
                        r.method().equals("GET") ? ScriptedServer.value("v") : ScriptedServer.answer(400, "", "no"));
                KvorumClient client = client(server).build()) {
            BlockingKvorumClient blocking = client.blocking();
            assertEquals("v", blocking.get("k").orElseThrow().valueUtf8());
            assertEquals(400, assertThrows(RefusedException.class, () -> blocking.put("k", "v")).status());
            CompletableFuture<Thread> where = new CompletableFuture<>();
            server.script(r -> ScriptedServer.after(200, ScriptedServer.value("v")));
            CompletableFuture<?> inside = client.get("k").thenApply(entry -> {
                where.complete(Thread.currentThread());
                return blocking.get("k");
            });
            assertInstanceOf(IllegalStateException.class, failure(IllegalStateException.class, inside));
            assertTrue(where.get().isDaemon());
            Thread waiting = Thread.currentThread();
            server.script(r -> ScriptedServer.stall());
            Thread interrupter = new Thread(() -> {
                try {
                    eventually(() -> client.inFlight() == 1);
                    waiting.interrupt();
                } catch (InterruptedException never) {
                    throw new AssertionError(never);
                }
            });
            interrupter.start();
            assertThrows(java.util.concurrent.CancellationException.class, () -> blocking.get("k"));
            assertTrue(Thread.interrupted());
            assertEquals(0, client.inFlight());
        }
    }

    /** A closed client's threads end, those of the JDK's HTTP client once it is collected. */
    @Test
    void threadsEndWithTheClient() throws Exception {
        Set<Thread> before = new HashSet<>(Thread.getAllStackTraces().keySet());
        try (ScriptedServer server = new ScriptedServer(r -> ScriptedServer.value("v"))) {
            KvorumClient client = client(server).build();
            client.get("k").get();
            client.close();
        }
        for (int tenth = 0; tenth < 200; tenth++) {
            System.gc();
            Set<Thread> left = new HashSet<>(Thread.getAllStackTraces().keySet());
            left.removeAll(before);
            left.removeIf(thread -> !(thread instanceof Core.ClientThread) && !thread.getName().contains("HttpClient"));
            if (left.isEmpty()) {
                return;
            }
            Thread.sleep(100);
        }
        throw new AssertionError("threads are left: " + Thread.getAllStackTraces().keySet());
    }
}

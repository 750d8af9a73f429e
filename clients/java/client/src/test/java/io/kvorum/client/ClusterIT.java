package io.kvorum.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.http.HttpRequest.BodyPublishers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The client and three real nodes. */
@Timeout(120)
class ClusterIT {
    private static Cluster cluster;
    private KvorumClient client;
    private BlockingKvorumClient blocking;

    @BeforeAll
    static void startCluster() throws Exception {
        cluster = new Cluster(3);
    }

    @AfterAll
    static void stopCluster() throws Exception {
        cluster.close();
    }

    @BeforeEach
    void makeClient() {
        client = KvorumClient.builder().nodes(cluster.urls()).build();
        blocking = client.blocking();
    }

    @AfterEach
    void closeClient() {
        client.close();
    }

    @Test
    void putGetDelete() {
        Version first = blocking.put("put-get-delete", "hello");
        Entry entry = blocking.get("put-get-delete").orElseThrow();
        assertEquals("hello", entry.valueUtf8());
        assertEquals(first, entry.version());
        assertTrue(entry.expires().isEmpty());
        assertTrue(Duration.between(first.instant(), Instant.now()).abs().toMinutes() < 1);
        Head head = blocking.head("put-get-delete").orElseThrow();
        assertEquals(List.of(5L, first), List.of(head.valueBytes(), head.version()));
        assertTrue(blocking.head("never-was").isEmpty());
        Version second = blocking.put("put-get-delete", "again");
        assertTrue(second.compareTo(first) > 0);
        Version third = blocking.delete("put-get-delete");
        assertTrue(third.compareTo(second) > 0);
        assertTrue(blocking.get("put-get-delete").isEmpty());
        assertTrue(blocking.delete("never-was").compareTo(first) > 0);
    }

    /** A condition that does not hold does nothing, and says so. */
    @Test
    void conditions() {
        Key key = Key.of("condition");
        Version first = blocking.putIf(key, Value.of("1"), Condition.absent(), WriteOptions.DEFAULT);
        ConditionFailedException failed = assertThrows(
                ConditionFailedException.class,
                () -> blocking.putIf(key, Value.of("2"), Condition.absent(), WriteOptions.DEFAULT));
        assertFalse(failed.mayHaveTakenEffect());
        Version second = blocking.putIf(key, Value.of("2"), Condition.version(first), WriteOptions.DEFAULT);
        assertTrue(second.compareTo(first) > 0);
        assertThrows(
                ConditionFailedException.class,
                () -> blocking.deleteIf(key, Condition.version(first), WriteOptions.DEFAULT));
        assertEquals("2", blocking.get(key).orElseThrow().valueUtf8());
        blocking.deleteIf(key, Condition.present(), WriteOptions.DEFAULT);
        assertThrows(
                ConditionFailedException.class,
                () -> blocking.deleteIf(key, Condition.present(), WriteOptions.DEFAULT));
    }

    @Test
    void additions() {
        Key key = Key.of("number");
        assertEquals(5, blocking.add(key, 5, WriteOptions.DEFAULT));
        assertEquals(-2, blocking.add(key, -7, WriteOptions.DEFAULT));
        assertEquals(-1L, client.add("number", 1).join());
        blocking.put("word", "one");
        RefusedException refused =
                assertThrows(RefusedException.class, () -> blocking.add(Key.of("word"), 1, WriteOptions.DEFAULT));
        assertEquals(409, refused.status());
    }

    /** Computations of rivals are all done, each from the value that the one before left. */
    @Test
    void computations() {
        WriteOptions patient = WriteOptions.DEFAULT.timeout(Duration.ofSeconds(60));
        Key key = Key.of("computed");
        List<CompletableFuture<Optional<Version>>> all = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            all.add(client.compute(
                    key,
                    old -> Optional.of(Value.of(old.map(Entry::valueUtf8).orElse("") + "x")),
                    patient));
        }
        // An unknown outcome is told, and is not repeated.
        int unknown = 0;
        for (CompletableFuture<Optional<Version>> one : all) {
            KvorumException error = one.handle((done, thrown) ->
                    thrown == null ? null : (KvorumException) (thrown.getCause() == null ? thrown : thrown.getCause()))
                    .join();
            assertTrue(error == null || error.mayHaveTakenEffect(), () -> error.getMessage());
            unknown += error == null ? 0 : 1;
        }
        int length = blocking.get(key).orElseThrow().value().length;
        assertTrue(length >= 20 - unknown && length <= 20, length + " with " + unknown + " unknown");
        assertEquals(Optional.empty(), blocking.compute(key, old -> Optional.empty(), patient));
    }

    /** Each operation of a batch has its own outcome, and those of a key their order. */
    @Test
    void batches() {
        byte[] bytes = {0, '"', '\\', (byte) 0xff};
        Version before = blocking.put("batch/old", "old");
        List<BatchResult> results = blocking.batch(new Batch()
                .put("batch/a", "1")
                .get("batch/a")
                .put(Key.of(bytes), bytes, WriteOptions.DEFAULT.ttl(Duration.ofMinutes(1)).replicas(Replicas.of(3, 3)))
                .get(Key.of(bytes), ReadOptions.DEFAULT.replicas(Replicas.of(1, 3)))
                .putIf("batch/old", "x", Condition.absent())
                .putIf("batch/old", "new \"ä\"\n", Condition.version(before))
                .get("batch/old")
                .delete("batch/a")
                .deleteIf(Key.of("batch/a"), Condition.present(), WriteOptions.DEFAULT)
                .get("batch/a")
                .put(Key.of("batch/b"), bytes, WriteOptions.DEFAULT.replicas(Replicas.of(3, 5))));
        assertEquals(List.of(201, 200, 201, 200, 412, 201, 200, 202, 412, 404, 400),
                results.stream().map(BatchResult::status).toList());
        assertEquals("1", results.get(1).entry().orElseThrow().valueUtf8());
        assertEquals(results.get(0).version(), results.get(1).version());
        Entry binary = results.get(3).entry().orElseThrow();
        assertArrayEquals(bytes, binary.value());
        assertTrue(binary.expires().isPresent());
        assertEquals(Optional.of(before), results.get(4).version());
        assertInstanceOf(ConditionFailedException.class, results.get(4).failure().orElseThrow());
        assertEquals("new \"ä\"\n", results.get(6).entry().orElseThrow().valueUtf8());
        assertTrue(results.get(9).isSuccess() && results.get(9).entry().isEmpty());
        assertInstanceOf(RefusedException.class, results.get(10).failure().orElseThrow());
    }

    /** The longest batch, with results in their order. */
    @Test
    void fullBatch() {
        Batch batch = new Batch();
        for (int n = 0; n < Batch.LINES_MAX / 2; n++) {
            batch.put("full/" + n, "v" + n).get("full/" + n);
        }
        AtomicInteger next = new AtomicInteger();
        client.batch(batch, result -> {
            int index = next.getAndIncrement();
            assertEquals(index, result.index());
            assertTrue(result.isSuccess(), result::toString);
            if (index % 2 == 1) {
                assertEquals("v" + index / 2, result.entry().orElseThrow().valueUtf8());
            }
        }).join();
        assertEquals(Batch.LINES_MAX, next.get());
    }

    /** Keys of every byte and the longest, values of none and of many bytes. */
    @Test
    void anyBytes() {
        List<Key> keys = new ArrayList<>();
        for (int b = 0; b < 256; b++) {
            keys.add(Key.of(new byte[] {'b', (byte) b}));
        }
        byte[] longest = new byte[Key.BYTES_MAX];
        new Random(1).nextBytes(longest);
        keys.add(Key.of(longest));
        List<CompletableFuture<Version>> writes = new ArrayList<>();
        for (Key key : keys) {
            writes.add(client.put(key, Value.of(key.bytes())));
        }
        writes.forEach(CompletableFuture::join);
        for (Key key : keys) {
            assertArrayEquals(key.bytes(), blocking.get(key).orElseThrow().value(), key.toString());
        }
        // As a range they come in the order of their bytes, and whole.
        try (Stream<Entry> range = blocking.range(Range.prefix("b"))) {
            List<Key> found = range.map(Entry::key).filter(key -> key.length() == 2).toList();
            assertEquals(keys.subList(0, 256), found);
        }
        byte[] large = new byte[3 << 20];
        new Random(2).nextBytes(large);
        for (byte[] value : new byte[][] {{}, {0}, large}) {
            blocking.put(Key.of("sized"), Value.of(value));
            assertArrayEquals(value, blocking.get("sized").orElseThrow().value());
        }
        blocking.put(Key.of("sized"), Value.of(BodyPublishers.fromPublisher(BodyPublishers.ofByteArray(large))));
        assertArrayEquals(large, blocking.get("sized").orElseThrow().value());
    }

    @Test
    void tooLarge() {
        KvorumException error = assertThrows(
                KvorumException.class, () -> blocking.put(Key.of("too-large"), Value.of(new byte[9 << 20])));
        // The node answers and closes while the value is still on its way, so the answer may be lost.
        if (error instanceof RefusedException refused) {
            assertEquals(413, refused.status());
        } else {
            assertInstanceOf(UnreachableException.class, error);
        }
        assertTrue(blocking.get("too-large").isEmpty());
    }

    @Test
    void timeToLive() throws Exception {
        Instant begun = Instant.now().truncatedTo(java.time.temporal.ChronoUnit.MILLIS);
        blocking.put(Key.of("ttl"), Value.of("v"), WriteOptions.DEFAULT.ttl(Duration.ofMillis(1500)));
        Instant ended = Instant.now();
        Instant expires = blocking.get("ttl").orElseThrow().expires().orElseThrow();
        assertFalse(expires.isBefore(begun.plusMillis(1500)) || expires.isAfter(ended.plusMillis(1500)));
        try (Stream<Entry> range = blocking.range(Range.from("ttl").limit(1))) {
            assertEquals(Optional.of(expires), range.findFirst().orElseThrow().expires());
        }
        while (!Instant.now().isAfter(expires)) {
            Thread.sleep(10);
        }
        assertTrue(blocking.get("ttl").isEmpty());
    }

    @Test
    void ranges() {
        List<CompletableFuture<Version>> writes = new ArrayList<>();
        for (int n = 0; n < 2000; n++) {
            byte[] value = n % 2 == 0 ? ("value\n\"" + n).getBytes(StandardCharsets.UTF_8) : new byte[] {(byte) 0xff};
            writes.add(client.put(String.format("range/%05d", n), value));
        }
        writes.forEach(CompletableFuture::join);
        blocking.delete("range/00007");
        try (Stream<Entry> range = blocking.range(Range.prefix("range/"))) {
            List<Entry> entries = range.toList();
            assertEquals(1999, entries.size());
            for (int at = 1; at < entries.size(); at++) {
                assertTrue(entries.get(at - 1).key().compareTo(entries.get(at).key()) < 0);
            }
            assertEquals("value\n\"6", entries.get(6).valueUtf8());
            assertEquals(writes.get(6).join(), entries.get(6).version());
            assertEquals("range/00008", entries.get(7).key().utf8());
            assertArrayEquals(new byte[] {(byte) 0xff}, entries.get(8).value());
        }
        try (Stream<Entry> range = blocking.range(Range.from("range/00100").to("range/00200").limit(7))) {
            assertEquals(7, range.count());
        }
        try (Stream<Entry> range = blocking.range(Range.from("range/00100").to("range/00200"))) {
            assertEquals(100, range.count());
        }
        try (Stream<Entry> range = blocking.range(Range.from("range/00200").to("range/00100"))) {
            assertEquals(0, range.count());
        }
    }

    /** Records written to one replica are where the client says they belong, and nowhere else. */
    @Test
    void routing() throws Exception {
        blocking.get("anything");
        ClientTest.eventually(() -> client.topologyEpoch().isPresent());
        Topology topology = Topology.parse(cluster.get(0, "/v0/topology"));
        assertEquals(topology.epoch(), client.topologyEpoch().orElseThrow());
        assertEquals(cluster.urls().stream().sorted().toList(), topology.nodes().stream().sorted().toList());
        WriteOptions one = WriteOptions.DEFAULT.replicas(Replicas.of(1, 1));
        List<Key> keys = new ArrayList<>();
        for (int n = 0; n < 90; n++) {
            byte[] key = Arrays.copyOf(("route/" + n + "/").getBytes(StandardCharsets.UTF_8), 10 + n * 11);
            keys.add(Key.of(key));
            blocking.put(Key.of(key), Value.of("v"), one);
        }
        for (int node = 0; node < 3; node++) {
            int place = topology.nodes().indexOf(cluster.urls().get(node));
            List<Key> expected = keys.stream()
                    .filter(key -> topology.place(topology.partition(key), 0) == place).sorted().toList();
            assertTrue(expected.size() > 10, "keys are spread");
            try (KvorumClient alone = KvorumClient.builder()
                            .nodes(cluster.urls().get(node)).routing(false).build();
                    Stream<Entry> stored = alone.blocking()
                            .range(Range.prefix("route/").scope(Range.Scope.LOCAL))) {
                assertEquals(expected, stored.map(Entry::key).toList());
            }
        }
    }

    @Test
    void impossibleQuorum() {
        RefusedException error = assertThrows(RefusedException.class, () -> blocking.put(
                Key.of("quorum"), Value.of("v"), WriteOptions.DEFAULT.replicas(Replicas.of(3, 5))));
        assertEquals(400, error.status());
        assertFalse(error.mayHaveTakenEffect());
    }

    /** One node gone: all three are not to be had, and the error says how many were; two of three are. */
    @Test
    void quorumErrors() throws Exception {
        blocking.put("quorum", "before");
        cluster.kill(2);
        try {
            WriteOptions all = WriteOptions.DEFAULT.replicas(Replicas.of(3, 3));
            NotEnoughReplicasException write = assertThrows(NotEnoughReplicasException.class,
                    () -> blocking.put(Key.of("quorum"), Value.of("unknown"), all));
            assertEquals(2, write.confirmed().orElseThrow());
            assertEquals(3, write.required().orElseThrow());
            assertEquals(3, write.from().orElseThrow());
            assertTrue(write.mayHaveTakenEffect());
            assertTrue(write.retrySafe());
            NotEnoughReplicasException read = assertThrows(NotEnoughReplicasException.class,
                    () -> blocking.get(Key.of("quorum"), ReadOptions.DEFAULT.replicas(Replicas.of(3, 3))));
            assertFalse(read.mayHaveTakenEffect());
            blocking.put("quorum", "after");
            assertEquals("after", blocking.get("quorum").orElseThrow().valueUtf8());
            // Without counts in the request, they come from the node's words.
            cluster.kill(1);
            NotEnoughReplicasException two = assertThrows(NotEnoughReplicasException.class, () -> blocking.delete("quorum"));
            assertEquals(1, two.confirmed().orElseThrow());
            assertEquals(2, two.required().orElseThrow());
        } finally {
            cluster.start(1);
            cluster.start(2);
            cluster.awaitReady(1);
            cluster.awaitReady(2);
        }
    }

    /**
     * A node is killed, later frozen, while 32 writers and readers are at work: reads all succeed; writes succeed or
     * are of unknown outcome; what was acknowledged is there in the end.
     */
    @Test
    void aNodeDiesMeanwhile() throws Exception {
        client.close();
        client = KvorumClient.builder().nodes(cluster.urls())
                .retry(RetryPolicy.DEFAULT.attemptsMax(10).patience(Duration.ofMillis(500))).build();
        AtomicBoolean isOver = new AtomicBoolean();
        AtomicInteger written = new AtomicInteger();
        AtomicInteger unknown = new AtomicInteger();
        ConcurrentLinkedQueue<String> wrong = new ConcurrentLinkedQueue<>();
        Map<String, Version> acknowledged = new ConcurrentHashMap<>();
        List<CompletableFuture<Void>> workers = new ArrayList<>();
        for (int worker = 0; worker < 32; worker++) {
            workers.add(work("storm/" + worker, isOver, written, unknown, wrong, acknowledged));
        }
        Thread.sleep(700);
        cluster.kill(0);
        ClientTest.eventually(() -> client.nodesAside() == 1);
        int beforeBeingAlone = written.get();
        Thread.sleep(700);
        assertTrue(written.get() > beforeBeingAlone, "two of three go on");
        cluster.start(0);
        cluster.awaitReady(0);
        ClientTest.eventually(() -> client.nodesAside() == 0);
        cluster.signal(1, "STOP");
        Thread.sleep(2500);
        cluster.signal(1, "CONT");
        ClientTest.eventually(() -> client.nodesAside() == 0);
        isOver.set(true);
        for (CompletableFuture<Void> worker : workers) {
            worker.get(30, TimeUnit.SECONDS);
        }
        assertEquals(List.of(), List.copyOf(wrong));
        assertTrue(written.get() > 100, written + " writes");
        for (Map.Entry<String, Version> write : acknowledged.entrySet()) {
            Entry entry = client.blocking().get(write.getKey()).orElseThrow();
            assertTrue(entry.version().compareTo(write.getValue()) >= 0, write.getKey());
        }
        System.out.println(written + " writes, " + unknown + " of unknown outcome");
    }

    /** Writes and reads one key, again and again. */
    private CompletableFuture<Void> work(String key, AtomicBoolean isOver, AtomicInteger written, AtomicInteger unknown,
            ConcurrentLinkedQueue<String> wrong, Map<String, Version> acknowledged) {
        if (isOver.get()) {
            return CompletableFuture.completedFuture(null);
        }
        return client.put(key, "v" + written.get())
                .handle((version, error) -> {
                    if (error == null) {
                        written.incrementAndGet();
                        acknowledged.put(key, version);
                    } else if (error instanceof KvorumException known && known.mayHaveTakenEffect()) {
                        unknown.incrementAndGet();
                    } else {
                        wrong.add(error.toString());
                    }
                    return null;
                })
                .thenCompose(done -> client.get(key))
                .handle((entry, error) -> {
                    Version known = acknowledged.get(key);
                    if (error != null) {
                        wrong.add(error.toString());
                    } else if (known != null && entry.map(e -> e.version().compareTo(known) < 0).orElse(true)) {
                        wrong.add(key + " went back: " + entry + " after " + known);
                    }
                    return null;
                })
                .thenComposeAsync(done -> work(key, isOver, written, unknown, wrong, acknowledged));
    }
}

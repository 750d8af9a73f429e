package io.kvorum.client;

import java.net.http.HttpRequest.BodyPublisher;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.Flow;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import javax.net.ssl.SSLContext;

/**
 * An asynchronous client of a kvorum cluster.
 *
 * <pre>{@code
 * try (KvorumClient client = KvorumClient.builder()
 *         .nodes("http://10.0.0.1:8080", "http://10.0.0.2:8080")
 *         .defaultReplicas(Replicas.of(2, 3))
 *         .timeout(Duration.ofSeconds(2))
 *         .build()) {
 *     client.put("greeting", "hello")
 *             .thenCompose(version -> client.get("greeting"))
 *             .thenAccept(entry -> System.out.println(entry.orElseThrow().valueUtf8()))
 *             .join();
 * }
 * }</pre>
 *
 * <p><b>Where requests go.</b> The client learns from the nodes where keys belong and asks a replica of the key, which
 * saves a hop; it notices by itself when that changes. Among equals it goes round; conditional
 * writes and additions go to the first replica, where rivals share their rounds. A node that fails is set aside until
 * a probe finds it well. Any node answers any request, so whatever is left is used when there is no better.
 *
 * <p><b>How long.</b> An operation has one deadline over all its attempts and waits; {@link RetryPolicy} says what is
 * repeated within it, and what that means for writes.
 *
 * <p><b>How many.</b> Operations in flight are bounded, and so are those that wait for their turn
 * ({@link Builder#maxInFlight(int, Overflow)}). A range counts as one until it ends.
 *
 * <p><b>Threads.</b> No thread is blocked while an operation is under way. What depends on a future runs on the
 * client's few threads, so it must not block them; give it an executor ({@code thenApplyAsync}) or the client a larger
 * {@linkplain Builder#executor(Executor) one}.
 *
 * <p><b>Cancelling.</b> To cancel a future ends its attempts and closes their connections. A write that was under way
 * is then of unknown outcome.
 *
 * <p>A client may be used by any number of threads. Make one and keep it: it holds the connections.
 */
public final class KvorumClient implements AutoCloseable {
    /** The longest pause of {@link #compute} after a rival has written in between. */
    private static final long COMPUTE_PAUSE_MILLIS_MAX = 100;

    private final Core core;
    private final Replicas defaultReplicas;
    private final Duration timeout;

    private KvorumClient(Builder builder) {
        this.core = new Core(builder);
        this.defaultReplicas = builder.defaultReplicas;
        this.timeout = builder.timeout;
    }

    /** Begins to make a client. */
    public static Builder builder() {
        return new Builder();
    }

    /** Makes a client; each setting says its default. */
    public static final class Builder {
        final List<String> nodes = new ArrayList<>();
        Replicas defaultReplicas;
        Duration timeout = Duration.ofSeconds(5);
        Duration connectTimeout = Duration.ofSeconds(1);
        int maxInFlight = 1024;
        Overflow overflow = Overflow.waitUpTo(16_384);
        RetryPolicy retry = RetryPolicy.DEFAULT;
        Hedging hedging = Hedging.OFF;
        boolean routing = true;
        /** The value of the header Authorization; null without a token. */
        String authorization;
        int answerBytesMax = 64 << 20;
        Executor executor;
        /** Null for the one of the JDK. */
        SSLContext sslContext;

        private Builder() {}

        /**
         * Adds nodes by their URLs, {@code http://host:port} or {@code https://host:port}. One is enough, since it tells of the others; with more,
         * the client also begins while one is down.
         *
         * @throws IllegalArgumentException if one is not such a URL
         */
        public Builder nodes(String... urls) {
            return nodes(List.of(urls));
        }

        /**
         * Adds nodes by their URLs, {@code http://host:port} or {@code https://host:port}.
         *
         * @throws IllegalArgumentException if one is not such a URL
         */
        public Builder nodes(Collection<String> urls) {
            urls.forEach(Node::normalize);
            nodes.addAll(urls);
            return this;
        }

        /**
         * Sets the token that is sent with every request, {@code ID.SECRET}. Default: none, which is right where nodes
         * run without {@code --auth}. Where nodes have no TLS, whoever reads the network's packets reads the token.
         *
         * @throws IllegalArgumentException if it is not a token
         */
        public Builder token(String token) {
            if (!token.strip().matches("[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+")) {
                // It may be a secret all the same, so it is not repeated.
                throw new IllegalArgumentException("not a token; a token is ID.SECRET");
            }
            authorization = "Bearer " + token.strip();
            return this;
        }

        /**
         * Sets which nodes with {@code https} URLs are believed, and the certificate that they are shown. Default: the
         * authorities of the JDK, and none. A client whose given nodes are all {@code https} follows to no
         * {@code http} one.
         */
        public Builder sslContext(SSLContext context) {
            sslContext = Objects.requireNonNull(context, "context");
            return this;
        }

        /** Sets the replicas of operations that do not say. Default: what the cluster is configured to. */
        public Builder defaultReplicas(Replicas replicas) {
            defaultReplicas = Objects.requireNonNull(replicas, "replicas");
            return this;
        }

        /**
         * Sets the overall time limit of an operation: its wait for a turn, all attempts, and the waits between them.
         * For a range, it is the limit to its beginning, and then for more to come when more is wanted. Default 5 s.
         */
        public Builder timeout(Duration timeout) {
            this.timeout = Limits.positive(timeout, "timeout");
            return this;
        }

        /** Sets the time limit to make one connection. Default 1 s. */
        public Builder connectTimeout(Duration timeout) {
            connectTimeout = Limits.positive(timeout, "connectTimeout");
            return this;
        }

        /**
         * Sets how many operations may be in flight at once, and what becomes of more. Each has a connection of its
         * own. Default 1,024, and up to 16,384 wait.
         */
        public Builder maxInFlight(int operations, Overflow overflow) {
            maxInFlight = Limits.atLeast(1, operations, "maxInFlight");
            this.overflow = Objects.requireNonNull(overflow, "overflow");
            return this;
        }

        /** Sets what is repeated after a failure. Default {@link RetryPolicy#DEFAULT}. */
        public Builder retry(RetryPolicy policy) {
            retry = Objects.requireNonNull(policy, "policy");
            return this;
        }

        /** Sets whether slow reads are asked of a second node, too. Default {@link Hedging#OFF}. */
        public Builder hedging(Hedging hedging) {
            this.hedging = Objects.requireNonNull(hedging, "hedging");
            return this;
        }

        /**
         * Sets whether requests go to replicas of their key, at the URLs by which the nodes know each other. Switch it
         * off where those cannot be reached from here, or where all must go over a proxy. Default true.
         */
        public Builder routing(boolean routing) {
            this.routing = routing;
            return this;
        }

        /**
         * Sets the largest answer taken into memory, in bytes: a value, or an entry of a range, where JSON may take six
         * bytes for one. Default 64 MiB.
         */
        public Builder answerBytesMax(int bytes) {
            answerBytesMax = Limits.atLeast(1024, bytes, "answerBytesMax");
            return this;
        }

        /**
         * Sets the threads that carry the connections and run what depends on futures. Default: as many as there are
         * processors, and at least two. The executor is not shut down with the client.
         */
        public Builder executor(Executor executor) {
            this.executor = Objects.requireNonNull(executor, "executor");
            return this;
        }

        /**
         * Makes the client. Nothing is connected yet.
         *
         * @throws IllegalStateException if no node was given
         */
        public KvorumClient build() {
            if (nodes.isEmpty()) {
                throw new IllegalStateException("a client needs the URL of at least one node");
            }
            return new KvorumClient(this);
        }
    }

    /** Reads a key. The result is empty where it has no value. */
    public CompletableFuture<Optional<Entry>> get(Key key, ReadOptions options) {
        Objects.requireNonNull(key, "key");
        return start(Operation.get(key, options.replicas().orElse(defaultReplicas)), options.timeout());
    }

    /** Reads a key. The result is empty where it has no value. */
    public CompletableFuture<Optional<Entry>> get(Key key) {
        return get(key, ReadOptions.DEFAULT);
    }

    /** Reads a key given as text. The result is empty where it has no value. */
    public CompletableFuture<Optional<Entry>> get(String key) {
        return get(Key.of(key), ReadOptions.DEFAULT);
    }

    /** Reads a key given as text. The result is empty where it has no value. */
    public CompletableFuture<Optional<Entry>> get(String key, ReadOptions options) {
        return get(Key.of(key), options);
    }

    /** Reads a key given as bytes. The result is empty where it has no value. */
    public CompletableFuture<Optional<Entry>> get(byte[] key) {
        return get(Key.of(key), ReadOptions.DEFAULT);
    }

    /** Reads a key given as bytes. The result is empty where it has no value. */
    public CompletableFuture<Optional<Entry>> get(byte[] key, ReadOptions options) {
        return get(Key.of(key), options);
    }

    /** Reads a key given as a buffer. The result is empty where it has no value. */
    public CompletableFuture<Optional<Entry>> get(ByteBuffer key) {
        return get(Key.of(key), ReadOptions.DEFAULT);
    }

    /** Reads a key given as a buffer. The result is empty where it has no value. */
    public CompletableFuture<Optional<Entry>> get(ByteBuffer key, ReadOptions options) {
        return get(Key.of(key), options);
    }

    /** Reads all of a key but its value. The result is empty where it has no value. */
    public CompletableFuture<Optional<Head>> head(Key key, ReadOptions options) {
        Objects.requireNonNull(key, "key");
        return start(Operation.head(key, options.replicas().orElse(defaultReplicas)), options.timeout());
    }

    /** Reads all of a key but its value. The result is empty where it has no value. */
    public CompletableFuture<Optional<Head>> head(Key key) {
        return head(key, ReadOptions.DEFAULT);
    }

    /** Reads all but the value of a key given as text. The result is empty where it has no value. */
    public CompletableFuture<Optional<Head>> head(String key) {
        return head(Key.of(key), ReadOptions.DEFAULT);
    }

    /** Reads all but the value of a key given as text. The result is empty where it has no value. */
    public CompletableFuture<Optional<Head>> head(String key, ReadOptions options) {
        return head(Key.of(key), options);
    }

    /** Reads all but the value of a key given as bytes. The result is empty where it has no value. */
    public CompletableFuture<Optional<Head>> head(byte[] key) {
        return head(Key.of(key), ReadOptions.DEFAULT);
    }

    /** Reads all but the value of a key given as bytes. The result is empty where it has no value. */
    public CompletableFuture<Optional<Head>> head(byte[] key, ReadOptions options) {
        return head(Key.of(key), options);
    }

    /** Reads all but the value of a key given as a buffer. The result is empty where it has no value. */
    public CompletableFuture<Optional<Head>> head(ByteBuffer key) {
        return head(Key.of(key), ReadOptions.DEFAULT);
    }

    /** Reads all but the value of a key given as a buffer. The result is empty where it has no value. */
    public CompletableFuture<Optional<Head>> head(ByteBuffer key, ReadOptions options) {
        return head(Key.of(key), options);
    }

    /** Writes a value. The result is its version. */
    public CompletableFuture<Version> put(Key key, Value value, WriteOptions options) {
        Objects.requireNonNull(key, "key");
        Objects.requireNonNull(value, "value");
        Replicas replicas = options.replicas().orElse(defaultReplicas);
        return start(Operation.put(key, value, options, replicas), options.timeout());
    }

    /**
     * Writes a value if {@code condition} holds, as one step. The result is its version, or fails with a
     * {@link ConditionFailedException}, and then nothing was done. ACK must be more than half of FROM. It is not
     * repeated after an unknown outcome, whatever the {@link RetryPolicy}.
     */
    public CompletableFuture<Version> putIf(Key key, Value value, Condition condition, WriteOptions options) {
        Objects.requireNonNull(key, "key");
        Objects.requireNonNull(value, "value");
        Objects.requireNonNull(condition, "condition");
        Replicas replicas = options.replicas().orElse(defaultReplicas);
        Operation<Version> put = Operation.put(key, value, options, replicas);
        return start(Operation.on(condition, put), options.timeout());
    }

    /** Writes text if {@code condition} holds, as {@link #putIf(Key, Value, Condition, WriteOptions)} does. */
    public CompletableFuture<Version> putIf(String key, String value, Condition condition) {
        return putIf(Key.of(key), Value.of(value), condition, WriteOptions.DEFAULT);
    }

    /** Deletes a key if {@code condition} holds, as {@link #putIf(Key, Value, Condition, WriteOptions)} writes one. */
    public CompletableFuture<Version> deleteIf(Key key, Condition condition, WriteOptions options) {
        Objects.requireNonNull(key, "key");
        Objects.requireNonNull(condition, "condition");
        Operation<Version> delete = Operation.delete(key, options.replicas().orElse(defaultReplicas));
        return start(Operation.on(condition, delete), options.timeout());
    }

    /** Deletes a key given as text if {@code condition} holds. */
    public CompletableFuture<Version> deleteIf(String key, Condition condition) {
        return deleteIf(Key.of(key), condition, WriteOptions.DEFAULT);
    }

    /**
     * Adds to the decimal number that is the key's value, as one step; a key without a value counts as 0. The result
     * is the new number. It fails with a {@link RefusedException} of status 409 where the value is no number of 64
     * bits, or the sum would be none. Where the failure {@linkplain KvorumException#mayHaveTakenEffect() may have taken
     * effect}, the number may have been added, once; it is not repeated then.
     */
    public CompletableFuture<Long> add(Key key, long addend, WriteOptions options) {
        Objects.requireNonNull(key, "key");
        Operation<Long> add = Operation.add(key, addend, options.replicas().orElse(defaultReplicas));
        return start(add, options.timeout());
    }

    /** Adds to the number at a key given as text. */
    public CompletableFuture<Long> add(String key, long addend) {
        return add(Key.of(key), addend, WriteOptions.DEFAULT);
    }

    /**
     * Writes what {@code change} makes of a key's value, as one step: it is called again with the newer value where
     * somebody else has written in between, until the deadline, which is that of all reads and writes together. It
     * gets an empty {@code Optional} for a key without a value; where it returns an empty one, nothing is written, and
     * the result is empty. It runs on the client's threads, so it must not block.
     *
     * <p>Where rivals were faster until the deadline, it fails with a {@link ConditionFailedException}. After an unknown
     * outcome it is not tried again.
     */
    public CompletableFuture<Optional<Version>> compute(
            Key key, Function<Optional<Entry>, Optional<Value>> change, WriteOptions options) {
        Objects.requireNonNull(change, "change");
        long deadline = System.nanoTime() + Limits.nanos(options.timeout().orElse(timeout));
        return compute(key, change, options, deadline, 1);
    }

    /** Writes what {@code change} makes of the value at a key given as text. */
    public CompletableFuture<Optional<Version>> compute(
            String key, Function<Optional<Entry>, Optional<Value>> change) {
        return compute(Key.of(key), change, WriteOptions.DEFAULT);
    }

    private CompletableFuture<Optional<Version>> compute(
            Key key,
            Function<Optional<Entry>, Optional<Value>> change,
            WriteOptions options,
            long deadline,
            long pauseMillis) {
        ReadOptions read = ReadOptions.DEFAULT.timeout(left(deadline));
        if (options.replicas().isPresent()) {
            read = read.replicas(options.replicas().get());
        }
        return get(key, read).thenCompose(entry -> {
            Optional<Value> value = change.apply(entry);
            if (value.isEmpty()) {
                return CompletableFuture.completedFuture(Optional.<Version>empty());
            }
            Condition condition = entry.map(found -> Condition.version(found.version())).orElse(Condition.absent());
            CompletableFuture<Optional<Version>> written =
                    putIf(key, value.get(), condition, options.timeout(left(deadline))).thenApply(Optional::of);
            return written.exceptionallyCompose(error -> {
                Throwable cause = error instanceof CompletionException ? error.getCause() : error;
                long pauseNanos = TimeUnit.MILLISECONDS.toNanos(pauseMillis);
                if (!(cause instanceof ConditionFailedException) || deadline - System.nanoTime() <= pauseNanos) {
                    return CompletableFuture.failedFuture(cause);
                }
                CompletableFuture<Void> paused = new CompletableFuture<>();
                if (core.later(() -> paused.complete(null), pauseNanos) == null) {
                    return CompletableFuture.failedFuture(cause);
                }
                long next = Math.min(2 * pauseMillis, COMPUTE_PAUSE_MILLIS_MAX);
                return paused.thenCompose(nothing -> compute(key, change, options, deadline, next));
            });
        });
    }

    /** The time until {@code deadline}, at least a moment. */
    private static Duration left(long deadline) {
        return Duration.ofNanos(Math.max(1, deadline - System.nanoTime()));
    }

    /** Writes a value. The result is its version. */
    public CompletableFuture<Version> put(Key key, Value value) {
        return put(key, value, WriteOptions.DEFAULT);
    }

    /** Writes text. The result is its version. */
    public CompletableFuture<Version> put(String key, String value) {
        return put(Key.of(key), Value.of(value), WriteOptions.DEFAULT);
    }

    /** Writes text. The result is its version. */
    public CompletableFuture<Version> put(String key, String value, WriteOptions options) {
        return put(Key.of(key), Value.of(value), options);
    }

    /** Writes bytes, which must not change until it is over. The result is their version. */
    public CompletableFuture<Version> put(String key, byte[] value) {
        return put(Key.of(key), Value.of(value), WriteOptions.DEFAULT);
    }

    /** Writes bytes, which must not change until it is over. The result is their version. */
    public CompletableFuture<Version> put(String key, byte[] value, WriteOptions options) {
        return put(Key.of(key), Value.of(value), options);
    }

    /** Writes bytes, which must not change until it is over. The result is their version. */
    public CompletableFuture<Version> put(byte[] key, byte[] value) {
        return put(Key.of(key), Value.of(value), WriteOptions.DEFAULT);
    }

    /** Writes bytes, which must not change until it is over. The result is their version. */
    public CompletableFuture<Version> put(byte[] key, byte[] value, WriteOptions options) {
        return put(Key.of(key), Value.of(value), options);
    }

    /** Writes the buffer's remaining bytes. The result is their version. */
    public CompletableFuture<Version> put(ByteBuffer key, ByteBuffer value) {
        return put(Key.of(key), Value.of(value), WriteOptions.DEFAULT);
    }

    /** Writes the buffer's remaining bytes. The result is their version. */
    public CompletableFuture<Version> put(ByteBuffer key, ByteBuffer value, WriteOptions options) {
        return put(Key.of(key), Value.of(value), options);
    }

    /** Writes what the publisher makes; see {@link Value#of(BodyPublisher)}. The result is its version. */
    public CompletableFuture<Version> put(String key, BodyPublisher value) {
        return put(Key.of(key), Value.of(value), WriteOptions.DEFAULT);
    }

    /** Writes what the publisher makes; see {@link Value#of(BodyPublisher)}. The result is its version. */
    public CompletableFuture<Version> put(String key, BodyPublisher value, WriteOptions options) {
        return put(Key.of(key), Value.of(value), options);
    }

    /**
     * Deletes a key, whether it has a value or not. The result is the deletion's version.
     *
     * @throws IllegalArgumentException if the options have a TTL
     */
    public CompletableFuture<Version> delete(Key key, WriteOptions options) {
        Objects.requireNonNull(key, "key");
        if (options.ttl().isPresent()) {
            throw new IllegalArgumentException("a deletion has no TTL");
        }
        return start(Operation.delete(key, options.replicas().orElse(defaultReplicas)), options.timeout());
    }

    /** Deletes a key, whether it has a value or not. The result is the deletion's version. */
    public CompletableFuture<Version> delete(Key key) {
        return delete(key, WriteOptions.DEFAULT);
    }

    /** Deletes a key given as text. The result is the deletion's version. */
    public CompletableFuture<Version> delete(String key) {
        return delete(Key.of(key), WriteOptions.DEFAULT);
    }

    /** Deletes a key given as text. The result is the deletion's version. */
    public CompletableFuture<Version> delete(String key, WriteOptions options) {
        return delete(Key.of(key), options);
    }

    /** Deletes a key given as bytes. The result is the deletion's version. */
    public CompletableFuture<Version> delete(byte[] key) {
        return delete(Key.of(key), WriteOptions.DEFAULT);
    }

    /** Deletes a key given as bytes. The result is the deletion's version. */
    public CompletableFuture<Version> delete(byte[] key, WriteOptions options) {
        return delete(Key.of(key), options);
    }

    /** Deletes a key given as a buffer. The result is the deletion's version. */
    public CompletableFuture<Version> delete(ByteBuffer key) {
        return delete(Key.of(key), WriteOptions.DEFAULT);
    }

    /** Deletes a key given as a buffer. The result is the deletion's version. */
    public CompletableFuture<Version> delete(ByteBuffer key, WriteOptions options) {
        return delete(Key.of(key), options);
    }

    /**
     * Reads a range, sorted by key. Each subscription reads it anew, beginning with its first demand.
     *
     * <p>Demand is what pulls: a subscriber that asks for little leaves the rest in the node, whatever the size of the
     * range. A node cuts a range that takes longer than it allows (5 minutes, unless configured otherwise), which ends
     * in a {@link RangeCutException}; a range that completes is whole. Nothing is repeated once entries have come.
     */
    public Flow.Publisher<Entry> range(Range range) {
        return new RangePublisher(core, Objects.requireNonNull(range, "range"), timeout);
    }

    /** Reads the keys from {@code start} up to and without {@code end}; see {@link #range(Range)}. */
    public Flow.Publisher<Entry> range(String start, String end) {
        return range(Range.from(start).to(end));
    }

    /**
     * Carries out a batch, and hands each result to {@code each} when it comes, in the order of the operations, one at a
     * time. The batch is <b>not atomic</b>. The future completes after the last result; an operation that failed is a
     * result like others ({@link BatchResult#failure()}).
     *
     * <p>The request is made while it is sent, and the node carries operations out no faster than results are taken,
     * so a batch of any answer needs little memory. {@code each} runs on the client's threads, so it must not block. If it
     * throws, the batch ends, and the future fails with what it threw; the rest may have taken effect.
     *
     * <p>Where the answer ends early, the future fails with a {@link BatchCutException}. A batch with writes is not
     * repeated after an unknown outcome, whatever the {@link RetryPolicy}. The client's time limit is that for the
     * answer to begin, and then for more results to come.
     */
    public CompletableFuture<Void> batch(Batch batch, Consumer<? super BatchResult> each) {
        Objects.requireNonNull(each, "each");
        List<Batch.Line> lines = batch.lines();
        if (lines.isEmpty()) {
            return CompletableFuture.completedFuture(null);
        }
        LineSource<BatchResult> source = new LineSource.OfBatch(lines, defaultReplicas);
        BatchSubscriber subscriber = new BatchSubscriber(each);
        subscriber.onSubscribe(new LineSubscription<>(core, source, timeout, subscriber));
        return subscriber.result();
    }

    /**
     * Carries out a batch, and returns all results in the order of the operations; see {@link #batch(Batch, Consumer)}.
     * If the values that it reads have together more than {@link Builder#answerBytesMax(int)}, it fails with an
     * {@link UnexpectedAnswerException}; take such results one at a time.
     */
    public CompletableFuture<List<BatchResult>> batch(Batch batch) {
        List<BatchResult> results = new ArrayList<>(batch.size());
        boolean isWrite = batch.lines().stream().anyMatch(Batch.Line::isWrite);
        KvorumException.Course course = new KvorumException.Course("BATCH of " + batch.size(), null, 1, isWrite);
        long[] bytes = {0};
        CompletableFuture<Void> all = batch(batch, result -> {
            bytes[0] += result.valueBytes();
            if (bytes[0] > core.answerBytesMax()) {
                String why = "the values are over the limit of " + core.answerBytesMax() + " bytes";
                throw new UnexpectedAnswerException(course, why, null);
            }
            results.add(result);
        });
        CompletableFuture<List<BatchResult>> listed = all.thenApply(done -> results);
        listed.whenComplete((done, error) -> {
            if (error != null) {
                // To cancel the list ends the batch.
                all.cancel(true);
            }
        });
        return listed;
    }

    /** The same operations for threads that may wait. */
    public BlockingKvorumClient blocking() {
        return new BlockingKvorumClient(this);
    }

    /** How many operations are in flight now. */
    public int inFlight() {
        return core.turnstile().inside();
    }

    /** How many operations wait for their turn now. */
    public int waiting() {
        return core.turnstile().waiting();
    }

    /** How many nodes are set aside now. */
    public int nodesAside() {
        return core.nodes().asideCount();
    }

    /** What names the cluster's topology as it is known here; empty until it was learned. */
    public Optional<String> topologyEpoch() {
        return Optional.ofNullable(core.nodes().epoch());
    }

    /**
     * Ends the client: operations under way fail with a {@link ClientClosedException}, and so do later ones. It does
     * not wait; the client's threads end within seconds.
     */
    @Override
    public void close() {
        core.close();
    }

    private <T> CompletableFuture<T> start(Operation<T> operation, Optional<Duration> timeout) {
        return new Call<>(core, operation, timeout.orElse(this.timeout)).start();
    }
}

package io.kvorum.bench;

import io.kvorum.client.KvorumClient;
import io.kvorum.client.Overflow;
import io.kvorum.client.Replicas;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.HdrHistogram.ConcurrentHistogram;
import org.HdrHistogram.Histogram;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * Operations per second with so many in flight, against a cluster that runs already:
 * {@code -jvmArgsAppend -Dkvorum.nodes=URL,URL}. After each iteration it prints the latencies of its operations, from the
 * call to the future's end.
 *
 * <p>One thread begins operations and keeps {@code inFlight} of them under way; a benchmark invocation is a batch of
 * them, long enough that its ramp at both ends does not matter. {@code routing} on and off shows what the saved hop is
 * worth; with as many replicas as nodes there is none to save, so {@code replicas} is one of one by default.
 */
@State(Scope.Benchmark)
@BenchmarkMode(Mode.Throughput)
@OutputTimeUnit(TimeUnit.SECONDS)
@Warmup(iterations = 2, time = 4)
@Measurement(iterations = 3, time = 4)
@Fork(value = 1, jvmArgsPrepend = "-Djava.util.concurrent.ForkJoinPool.common.parallelism=2")
public class ClientBenchmark {
    private static final int BATCH = 4096;
    private static final int KEYS = 10_000;

    @Param({"64", "1024"})
    public int inFlight;

    @Param({"true", "false"})
    public boolean routing;

    @Param("1/1")
    public String replicas;

    private final byte[] value = new byte[100];
    private final Histogram latencies = new ConcurrentHistogram(3);
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private KvorumClient client;
    private Semaphore places;

    /** Makes the client, which learns the topology, and writes every key once. */
    @Setup
    public void setUp() throws Exception {
        String[] counts = replicas.split("/");
        String nodes = System.getProperty("kvorum.nodes");
        if (nodes == null) {
            // No default: what would be measured, and written to, might be somebody's.
            throw new IllegalStateException("-jvmArgsAppend -Dkvorum.nodes=URL,URL is missing");
        }
        client = KvorumClient.builder()
                .nodes(nodes.split(","))
                .defaultReplicas(Replicas.of(Integer.parseInt(counts[0]), Integer.parseInt(counts[1])))
                .routing(routing)
                .maxInFlight(inFlight, Overflow.FAIL)
                .build();
        places = new Semaphore(inFlight);
        for (int key = 0; key < KEYS; key++) {
            int number = key;
            flow(() -> client.put("bench-" + number, value));
        }
        drain();
    }

    /** Forgets the iteration before. */
    @Setup(Level.Iteration)
    public void forgetLatencies() {
        latencies.reset();
    }

    /** Prints the iteration's latencies. */
    @TearDown(Level.Iteration)
    public void printLatencies() {
        System.out.printf("latency us, p50 / p99 / p99.9: %d / %d / %d; ", latencies.getValueAtPercentile(50),
                latencies.getValueAtPercentile(99), latencies.getValueAtPercentile(99.9));
    }

    @TearDown
    public void tearDown() {
        client.close();
    }

    @Benchmark
    @OperationsPerInvocation(BATCH)
    public void get() throws Exception {
        for (int n = 0; n < BATCH; n++) {
            flow(() -> client.get("bench-" + ThreadLocalRandom.current().nextInt(KEYS)));
        }
        drain();
    }

    @Benchmark
    @OperationsPerInvocation(BATCH)
    public void put() throws Exception {
        for (int n = 0; n < BATCH; n++) {
            flow(() -> client.put("bench-" + ThreadLocalRandom.current().nextInt(KEYS), value));
        }
        drain();
    }

    /** Begins an operation once there is a place for it. */
    private void flow(java.util.function.Supplier<CompletableFuture<?>> operation) throws InterruptedException {
        places.acquire();
        long begun = System.nanoTime();
        operation.get().whenComplete((result, error) -> {
            latencies.recordValue((System.nanoTime() - begun) / 1000);
            if (error != null) {
                failure.compareAndSet(null, error);
            }
            places.release();
        });
    }

    private void drain() throws Exception {
        places.acquire(inFlight);
        places.release(inFlight);
        if (failure.get() != null) {
            throw new IllegalStateException("an operation failed", failure.get());
        }
    }
}

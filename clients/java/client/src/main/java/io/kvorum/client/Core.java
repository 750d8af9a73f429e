package io.kvorum.client;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;

/** What all operations of a client share: the HTTP client, threads, time, nodes, and the places in flight. */
final class Core {
    /** A thread of the client's own, on which blocking would stop what it waits for. */
    static final class ClientThread extends Thread {
        ClientThread(Runnable task, String name) {
            super(task, name);
            setDaemon(true);
        }
    }

    private static final AtomicInteger CLIENTS = new AtomicInteger();
    private static final long IDLE_THREAD_SECONDS = 5;

    private final Executor executor;
    private final ScheduledThreadPoolExecutor timer;
    private final Turnstile turnstile;
    private final Nodes nodes;
    private final Duration timeout;
    private final RetryPolicy retry;
    private final Hedging hedging;
    private final HedgeBudget hedgeBudget;
    private final int answerBytesMax;
    /** The value of the header Authorization; null without a token. */
    private final String authorization;
    /** Null once the client is closed. */
    private volatile HttpClient http;
    /** Everything that must hear of the client's end. Identity is equality here. */
    private final Set<Consumer<ClientClosed>> open = ConcurrentHashMap.newKeySet();

    /** Makes the exception for an operation that the end of the client ends. */
    interface ClientClosed {
        KvorumException exception(KvorumException.Course course);
    }

    Core(KvorumClient.Builder builder) {
        this.timeout = builder.timeout;
        this.retry = builder.retry;
        this.hedging = builder.hedging;
        this.hedgeBudget = new HedgeBudget(builder.hedging.budget());
        this.answerBytesMax = builder.answerBytesMax;
        this.authorization = builder.authorization;
        this.turnstile = new Turnstile(builder.maxInFlight, builder.overflow.waitingMax());
        this.nodes = new Nodes(this, builder.nodes, builder.routing);
        String name = "kvorum-client-" + CLIENTS.incrementAndGet();
        this.executor = builder.executor != null ? builder.executor : pool(name);
        this.timer = new ScheduledThreadPoolExecutor(1, task -> new ClientThread(task, name + "-timer"));
        // Nearly every timer is cancelled: the answer comes in time. They must not stay until then.
        timer.setRemoveOnCancelPolicy(true);
        HttpClient.Builder making = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .followRedirects(HttpClient.Redirect.NEVER)
                .connectTimeout(builder.connectTimeout)
                .executor(executor);
        if (builder.sslContext != null) {
            making.sslContext(builder.sslContext);
        }
        this.http = making.build();
    }

    /** A few threads that end when nothing was to do for a while, so that nobody needs to end them. */
    private static Executor pool(String name) {
        AtomicInteger numbers = new AtomicInteger();
        ThreadFactory threads = task -> new ClientThread(task, name + "-" + numbers.incrementAndGet());
        int size = Math.max(2, Runtime.getRuntime().availableProcessors());
        // The queue has no bound of its own: what comes in is bounded by the operations in flight.
        ThreadPoolExecutor pool = new ThreadPoolExecutor(
                size, size, IDLE_THREAD_SECONDS, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), threads);
        pool.allowCoreThreadTimeOut(true);
        return pool;
    }

    /** The HTTP client; null once the client is closed. */
    HttpClient http() {
        return http;
    }

    /** Begins a request to {@code node}, with the client's token. */
    HttpRequest.Builder request(Node node, String target) {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(node.base() + target));
        return authorization == null ? request : request.header("Authorization", authorization);
    }

    Nodes nodes() {
        return nodes;
    }

    Turnstile turnstile() {
        return turnstile;
    }

    Duration timeout() {
        return timeout;
    }

    RetryPolicy retry() {
        return retry;
    }

    Hedging hedging() {
        return hedging;
    }

    HedgeBudget hedgeBudget() {
        return hedgeBudget;
    }

    int answerBytesMax() {
        return answerBytesMax;
    }

    /** Runs a task on the client's threads; on this one if they take nothing any more. */
    void run(Runnable task) {
        try {
            executor.execute(task);
        } catch (RejectedExecutionException ended) {
            task.run();
        }
    }

    /**
     * Runs a task on the client's threads after a while; null once the client is closed. The timer's own thread only
     * hands over, because tasks complete futures, and what depends on those is not ours.
     */
    Future<?> later(Runnable task, long nanos) {
        try {
            return timer.schedule(() -> run(task), nanos, TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException closed) {
            return null;
        }
    }

    /** Gives a place in flight back, and lets the next one in. */
    void leave() {
        Runnable next = turnstile.leave();
        if (next != null) {
            // On a stack of its own: it may fail at once and let the next one in, and so on.
            run(next);
        }
    }

    /** Will be told of the client's end. False if that has come: then it is not told. */
    boolean enroll(Consumer<ClientClosed> operation) {
        open.add(operation);
        if (http != null) {
            return true;
        }
        return !open.remove(operation);
    }

    void strike(Consumer<ClientClosed> operation) {
        open.remove(operation);
    }

    ClientClosedException closed(KvorumException.Course course) {
        return new ClientClosedException(course, "the client is closed", null);
    }

    /** Ends everything. A second call does nothing. */
    void close() {
        HttpClient last = http;
        if (last == null) {
            return;
        }
        http = null;
        for (Consumer<ClientClosed> operation : open) {
            if (open.remove(operation)) {
                operation.accept(this::closed);
            }
        }
        timer.shutdownNow();
        shutDown(last);
    }

    /**
     * Closes idle connections where the JDK can (from 21 on). Before, its HTTP client closes them, and ends its one
     * thread, once nothing refers to it any more.
     */
    private static void shutDown(HttpClient http) {
        try {
            MethodHandles.publicLookup()
                    .findVirtual(HttpClient.class, "shutdownNow", MethodType.methodType(void.class))
                    .invoke(http);
        } catch (Throwable older) {
            // As said: it ends by itself.
        }
    }
}

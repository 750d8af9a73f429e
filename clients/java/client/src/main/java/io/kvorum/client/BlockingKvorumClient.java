package io.kvorum.client;

import java.util.ArrayDeque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Flow;
import java.util.function.Function;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/**
 * The operations of a {@link KvorumClient} for threads that may wait: each returns when it is over, and throws the
 * {@link KvorumException} that the future would fail with.
 *
 * <p>An interrupt cancels the operation and comes out as a {@link CancellationException}, the thread's interrupt flag
 * still set; a write may have taken effect. On the client's own threads, where waiting could wait for itself, a call
 * is refused with an {@link IllegalStateException}.
 */
public final class BlockingKvorumClient {
    private static final int RANGE_AHEAD = 64;

    private final KvorumClient client;

    BlockingKvorumClient(KvorumClient client) {
        this.client = client;
    }

    /** Reads a key; empty where it has no value. */
    public Optional<Entry> get(Key key, ReadOptions options) {
        return await(client().get(key, options));
    }

    /** Reads a key; empty where it has no value. */
    public Optional<Entry> get(Key key) {
        return await(client().get(key));
    }

    /** Reads a key given as text; empty where it has no value. */
    public Optional<Entry> get(String key) {
        return await(client().get(key));
    }

    /** Reads a key given as bytes; empty where it has no value. */
    public Optional<Entry> get(byte[] key) {
        return await(client().get(key));
    }

    /** Reads all of a key but its value; empty where it has no value. */
    public Optional<Head> head(Key key, ReadOptions options) {
        return await(client().head(key, options));
    }

    /** Reads all of a key but its value; empty where it has no value. */
    public Optional<Head> head(Key key) {
        return await(client().head(key));
    }

    /** Reads all but the value of a key given as text; empty where it has no value. */
    public Optional<Head> head(String key) {
        return await(client().head(key));
    }

    /** Reads all but the value of a key given as bytes; empty where it has no value. */
    public Optional<Head> head(byte[] key) {
        return await(client().head(key));
    }

    /** Writes a value; its version. */
    public Version put(Key key, Value value, WriteOptions options) {
        return await(client().put(key, value, options));
    }

    /** Writes a value; its version. */
    public Version put(Key key, Value value) {
        return await(client().put(key, value));
    }

    /** Writes text; its version. */
    public Version put(String key, String value) {
        return await(client().put(key, value));
    }

    /** Writes bytes; their version. */
    public Version put(byte[] key, byte[] value) {
        return await(client().put(key, value));
    }

    /** Writes a value if {@code condition} holds; its version. */
    public Version putIf(Key key, Value value, Condition condition, WriteOptions options) {
        return await(client().putIf(key, value, condition, options));
    }

    /** Deletes a key if {@code condition} holds; the deletion's version. */
    public Version deleteIf(Key key, Condition condition, WriteOptions options) {
        return await(client().deleteIf(key, condition, options));
    }

    /** Adds to the number that is a key's value; the new number. */
    public long add(Key key, long addend, WriteOptions options) {
        return await(client().add(key, addend, options));
    }

    /** Writes what {@code change} makes of a key's value; empty where nothing was written. */
    public Optional<Version> compute(
            Key key, Function<Optional<Entry>, Optional<Value>> change, WriteOptions options) {
        return await(client().compute(key, change, options));
    }

    /** Deletes a key, whether it has a value or not; the deletion's version. */
    public Version delete(Key key, WriteOptions options) {
        return await(client().delete(key, options));
    }

    /** Deletes a key, whether it has a value or not; the deletion's version. */
    public Version delete(Key key) {
        return await(client().delete(key));
    }

    /** Deletes a key given as text; the deletion's version. */
    public Version delete(String key) {
        return await(client().delete(key));
    }

    /** Deletes a key given as bytes; the deletion's version. */
    public Version delete(byte[] key) {
        return await(client().delete(key));
    }

    /** Carries out a batch; all results, in the order of its operations. */
    public List<BatchResult> batch(Batch batch) {
        return await(client().batch(batch));
    }

    /**
     * Reads a range as a sequential stream, a few entries ahead of who takes them. Close it if you do not read it to
     * its end: until then it holds a connection. It throws where the range fails.
     */
    public Stream<Entry> range(Range range) {
        refuseOwnThread();
        Entries entries = new Entries();
        client.range(range).subscribe(entries);
        int traits = Spliterator.ORDERED | Spliterator.NONNULL | Spliterator.DISTINCT;
        return StreamSupport.stream(Spliterators.spliteratorUnknownSize(entries, traits), false)
                .onClose(entries::cancel);
    }

    /** The client, before anything is begun. */
    private KvorumClient client() {
        refuseOwnThread();
        return client;
    }

    private static void refuseOwnThread() {
        if (Thread.currentThread() instanceof Core.ClientThread) {
            throw new IllegalStateException(
                    "this is a thread of a client, which must not wait for one; use the asynchronous operations");
        }
    }

    private static <T> T await(CompletableFuture<T> future) {
        try {
            return future.get();
        } catch (InterruptedException interrupted) {
            future.cancel(true);
            Thread.currentThread().interrupt();
            throw interrupted(interrupted);
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof KvorumException error) {
                // It comes from another thread: this shows where that was waited for.
                error.addSuppressed(new Waited());
                throw error;
            }
            throw new IllegalStateException(failed.getCause());
        }
    }

    private static CancellationException interrupted(InterruptedException cause) {
        CancellationException cancelled = new CancellationException("interrupted while waiting");
        cancelled.initCause(cause);
        return cancelled;
    }

    /** Where the caller waited. */
    private static final class Waited extends Exception {
        private static final long serialVersionUID = 1;

        Waited() {
            super("waited for here");
        }
    }

    /** A range for a thread that takes entry by entry. The monitor guards the fields and is what that thread waits on. */
    private static final class Entries implements Flow.Subscriber<Entry>, Iterator<Entry> {
        private final ArrayDeque<Entry> ready = new ArrayDeque<>();
        private Flow.Subscription subscription;
        private int taken;
        private boolean hasEnded;
        private Throwable error;

        @Override
        public void onSubscribe(Flow.Subscription subscription) {
            this.subscription = subscription;
            subscription.request(RANGE_AHEAD);
        }

        @Override
        public synchronized void onNext(Entry entry) {
            ready.add(entry);
            notifyAll();
        }

        @Override
        public synchronized void onError(Throwable error) {
            this.error = error;
            this.hasEnded = true;
            notifyAll();
        }

        @Override
        public synchronized void onComplete() {
            hasEnded = true;
            notifyAll();
        }

        void cancel() {
            subscription.cancel();
        }

        @Override
        public boolean hasNext() {
            refuseOwnThread();
            synchronized (this) {
                while (ready.isEmpty() && !hasEnded) {
                    try {
                        wait();
                    } catch (InterruptedException interrupted) {
                        cancel();
                        Thread.currentThread().interrupt();
                        throw interrupted(interrupted);
                    }
                }
                if (!ready.isEmpty()) {
                    return true;
                }
            }
            if (error instanceof KvorumException known) {
                known.addSuppressed(new Waited());
                throw known;
            }
            if (error != null) {
                throw new IllegalStateException(error);
            }
            return false;
        }

        @Override
        public Entry next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            Entry entry;
            boolean isLow;
            synchronized (this) {
                entry = ready.remove();
                taken++;
                isLow = taken >= RANGE_AHEAD / 2;
                taken = isLow ? 0 : taken;
            }
            if (isLow) {
                subscription.request(RANGE_AHEAD / 2);
            }
            return entry;
        }
    }
}

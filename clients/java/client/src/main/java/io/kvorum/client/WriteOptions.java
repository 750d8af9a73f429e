package io.kvorum.client;

import java.time.Duration;
import java.util.Objects;
import java.util.Optional;

/** What one write does otherwise than the client's defaults. Immutable. */
public final class WriteOptions {
    /** The client's defaults, and no TTL. */
    public static final WriteOptions DEFAULT = new WriteOptions(null, null, null);

    private static final Duration TTL_MAX = Duration.ofDays(36500);

    private final Replicas replicas;
    private final Duration timeout;
    private final Duration ttl;

    private WriteOptions(Replicas replicas, Duration timeout, Duration ttl) {
        this.replicas = replicas;
        this.timeout = timeout;
        this.ttl = ttl;
    }

    /** With these replicas. */
    public WriteOptions replicas(Replicas replicas) {
        return new WriteOptions(Objects.requireNonNull(replicas, "replicas"), timeout, ttl);
    }

    /** With this overall time limit. */
    public WriteOptions timeout(Duration timeout) {
        return new WriteOptions(replicas, Limits.positive(timeout, "timeout"), ttl);
    }

    /**
     * With this time to live, counted from the clock of the node that takes the write; for a put only.
     *
     * @throws IllegalArgumentException if it is shorter than a millisecond or longer than 100 years (36500 days)
     */
    public WriteOptions ttl(Duration ttl) {
        if (ttl.compareTo(Duration.ofMillis(1)) < 0) {
            throw new IllegalArgumentException("a TTL is at least 1 ms; this one is " + ttl);
        }
        if (ttl.compareTo(TTL_MAX) > 0) {
            throw new IllegalArgumentException("a TTL is at most 100 years (36500 days); this one is " + ttl);
        }
        return new WriteOptions(replicas, timeout, ttl);
    }

    /** The replicas, if they are not the client's default. */
    public Optional<Replicas> replicas() {
        return Optional.ofNullable(replicas);
    }

    /** The time limit, if it is not the client's default. */
    public Optional<Duration> timeout() {
        return Optional.ofNullable(timeout);
    }

    /** The time to live, if there is one. */
    public Optional<Duration> ttl() {
        return Optional.ofNullable(ttl);
    }
}

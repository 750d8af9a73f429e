package io.kvorum.client;

import java.time.Duration;
import java.util.Objects;
import java.util.Optional;

/** What one read does otherwise than the client's defaults. Immutable. */
public final class ReadOptions {
    /** The client's defaults. */
    public static final ReadOptions DEFAULT = new ReadOptions(null, null);

    private final Replicas replicas;
    private final Duration timeout;

    private ReadOptions(Replicas replicas, Duration timeout) {
        this.replicas = replicas;
        this.timeout = timeout;
    }

    /** With these replicas. */
    public ReadOptions replicas(Replicas replicas) {
        return new ReadOptions(Objects.requireNonNull(replicas, "replicas"), timeout);
    }

    /** With this overall time limit. */
    public ReadOptions timeout(Duration timeout) {
        return new ReadOptions(replicas, Limits.positive(timeout, "timeout"));
    }

    /** The replicas, if they are not the client's default. */
    public Optional<Replicas> replicas() {
        return Optional.ofNullable(replicas);
    }

    /** The time limit, if it is not the client's default. */
    public Optional<Duration> timeout() {
        return Optional.ofNullable(timeout);
    }
}

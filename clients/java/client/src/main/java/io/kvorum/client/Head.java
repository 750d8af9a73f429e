package io.kvorum.client;

import java.time.Instant;
import java.util.Objects;
import java.util.Optional;

/** All of an {@link Entry} but its value: what a HEAD tells. */
public final class Head {
    private final Key key;
    private final long valueBytes;
    private final Version version;
    private final Instant expires;

    Head(Key key, long valueBytes, Version version, Instant expires) {
        this.key = Objects.requireNonNull(key);
        this.valueBytes = valueBytes;
        this.version = Objects.requireNonNull(version);
        this.expires = expires;
    }

    /** The key. */
    public Key key() {
        return key;
    }

    /** The value's length in bytes. */
    public long valueBytes() {
        return valueBytes;
    }

    /** The version. */
    public Version version() {
        return version;
    }

    /** When the entry will be gone, if it was written with a TTL. */
    public Optional<Instant> expires() {
        return Optional.ofNullable(expires);
    }

    @Override
    public String toString() {
        return key + " = " + valueBytes + " bytes, version " + version
                + (expires == null ? "" : ", expires " + expires);
    }
}

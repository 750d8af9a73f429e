package io.kvorum.client;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Objects;
import java.util.Optional;

/** A key with its value and version, as it was read. */
public final class Entry {
    private final Key key;
    private final byte[] value;
    private final Version version;
    private final Instant expires;

    Entry(Key key, byte[] value, Version version, Instant expires) {
        this.key = Objects.requireNonNull(key);
        this.value = Objects.requireNonNull(value);
        this.version = Objects.requireNonNull(version);
        this.expires = expires;
    }

    /** The key. */
    public Key key() {
        return key;
    }

    /** The value's bytes: the entry's own array, not a copy, because values may be megabytes. */
    public byte[] value() {
        return value;
    }

    /** The value's bytes to read only. */
    public ByteBuffer valueBuffer() {
        return ByteBuffer.wrap(value).asReadOnlyBuffer();
    }

    /** The value as UTF-8 text; what is no UTF-8 becomes replacement characters. */
    public String valueUtf8() {
        return new String(value, StandardCharsets.UTF_8);
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
        return key + " = " + value.length + " bytes, version " + version
                + (expires == null ? "" : ", expires " + expires);
    }
}

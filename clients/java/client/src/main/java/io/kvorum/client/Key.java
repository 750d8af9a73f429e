package io.kvorum.client;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** A key: 1 to 1,024 bytes of any kind, ordered as unsigned bytes. Immutable. */
public final class Key implements Comparable<Key> {
    /** The longest key, in bytes. */
    public static final int BYTES_MAX = 1024;

    private static final char[] HEX = "0123456789ABCDEF".toCharArray();
    private static final int SHOWN_BYTES_MAX = 64;

    private final byte[] bytes;

    private Key(byte[] bytes) {
        if (bytes.length == 0 || bytes.length > BYTES_MAX) {
            throw new IllegalArgumentException(
                    "a key has 1 to " + BYTES_MAX + " bytes; this one has " + bytes.length);
        }
        this.bytes = bytes;
    }

    /**
     * A key of these bytes, which are copied.
     *
     * @throws IllegalArgumentException if there are none or more than {@link #BYTES_MAX}
     */
    public static Key of(byte[] bytes) {
        return new Key(bytes.clone());
    }

    /**
     * A key of this text as UTF-8.
     *
     * @throws IllegalArgumentException if it has no or more than {@link #BYTES_MAX} bytes
     */
    public static Key of(String text) {
        return new Key(text.getBytes(StandardCharsets.UTF_8));
    }

    /**
     * A key of the buffer's remaining bytes, which are copied; its position stays where it is.
     *
     * @throws IllegalArgumentException if there are none or more than {@link #BYTES_MAX}
     */
    public static Key of(ByteBuffer buffer) {
        if (buffer.remaining() > BYTES_MAX) {
            throw new IllegalArgumentException(
                    "a key has 1 to " + BYTES_MAX + " bytes; this one has " + buffer.remaining());
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return new Key(bytes);
    }

    /** A copy of the bytes. */
    public byte[] bytes() {
        return bytes.clone();
    }

    /** The bytes as UTF-8 text; what is no UTF-8 becomes replacement characters. */
    public String utf8() {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** How many bytes there are. */
    public int length() {
        return bytes.length;
    }

    byte[] shared() {
        return bytes;
    }

    /**
     * Appends the key as the value of a query's parameter. All but the characters that a URI never escapes are
     * escaped: a plus sign would be safe with the node, but not with every proxy on the way.
     */
    void appendEscaped(StringBuilder target) {
        for (byte b : bytes) {
            if (isUnreserved(b)) {
                target.append((char) b);
            } else {
                target.append('%').append(HEX[b >> 4 & 15]).append(HEX[b & 15]);
            }
        }
    }

    private static boolean isUnreserved(byte b) {
        return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
                || b == '-' || b == '.' || b == '_' || b == '~';
    }

    @Override
    public int compareTo(Key other) {
        return Arrays.compareUnsigned(bytes, other.bytes);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Key key && Arrays.equals(bytes, key.bytes);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(bytes);
    }

    /** The key for people: quoted, escaped and cut after 64 bytes. */
    @Override
    public String toString() {
        StringBuilder text = new StringBuilder("\"");
        for (int at = 0; at < Math.min(bytes.length, SHOWN_BYTES_MAX); at++) {
            int b = bytes[at] & 0xff;
            if (b >= 0x20 && b < 0x7f && b != '"' && b != '\\') {
                text.append((char) b);
            } else {
                text.append("\\x").append(HEX[b >> 4]).append(HEX[b & 15]);
            }
        }
        return text.append(bytes.length > SHOWN_BYTES_MAX ? "…\"" : "\"").toString();
    }
}

package io.kvorum.client;

import java.io.ByteArrayOutputStream;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.NoSuchElementException;
import java.util.Objects;

/**
 * Operations that go to a node in one request: see {@link KvorumClient#batch(Batch)}. Not atomic: each has an outcome of
 * its own. Those of one key are carried out in their order, others at the same time.
 *
 * <p>Values are not copied and must not change until the batch is over. For one thread at a time; it can be sent again.
 */
public final class Batch {
    /** The most operations. */
    public static final int LINES_MAX = 10_000;
    /** The most bytes on the way: those of keys and values, a third more where they are not plain ASCII, and some per operation. */
    public static final int BYTES_MAX = 64 << 20;

    /** So many bytes of lines are made at a time while a batch is sent. */
    private static final int BLOCK_BYTES = 16 << 10;
    /** What the client's default replicas may add to a line. */
    private static final Replicas WIDEST = Replicas.of(0xffff, 0xffff);

    private final List<Line> lines = new ArrayList<>();
    private long bytes;

    /** One without operations. */
    public Batch() {}

    /** Reads a key. */
    public Batch get(Key key, ReadOptions options) {
        refuseTimeout(options.timeout().isPresent());
        return add(new Line("GET", key, null, options.replicas().orElse(null), null, null));
    }

    /** Reads a key given as text. */
    public Batch get(String key) {
        return get(Key.of(key), ReadOptions.DEFAULT);
    }

    /** Writes bytes, which must not change until the batch is over. */
    public Batch put(Key key, byte[] value, WriteOptions options) {
        return write("PUT", key, Objects.requireNonNull(value, "value"), options, null);
    }

    /** Writes text. */
    public Batch put(String key, String value) {
        return put(Key.of(key), value.getBytes(StandardCharsets.UTF_8), WriteOptions.DEFAULT);
    }

    /** Writes bytes if {@code condition} holds, as one step. */
    public Batch putIf(Key key, byte[] value, Condition condition, WriteOptions options) {
        Objects.requireNonNull(condition, "condition");
        return write("PUT", key, Objects.requireNonNull(value, "value"), options, condition);
    }

    /** Writes text if {@code condition} holds, as one step. */
    public Batch putIf(String key, String value, Condition condition) {
        return putIf(Key.of(key), value.getBytes(StandardCharsets.UTF_8), condition, WriteOptions.DEFAULT);
    }

    /**
     * Deletes a key.
     *
     * @throws IllegalArgumentException if the options have a TTL
     */
    public Batch delete(Key key, WriteOptions options) {
        return write("DELETE", key, null, options, null);
    }

    /** Deletes a key given as text. */
    public Batch delete(String key) {
        return delete(Key.of(key), WriteOptions.DEFAULT);
    }

    /**
     * Deletes a key if {@code condition} holds, as one step.
     *
     * @throws IllegalArgumentException if the options have a TTL
     */
    public Batch deleteIf(Key key, Condition condition, WriteOptions options) {
        return write("DELETE", key, null, options, Objects.requireNonNull(condition, "condition"));
    }

    /** How many operations it has. */
    public int size() {
        return lines.size();
    }

    private Batch write(String method, Key key, byte[] value, WriteOptions options, Condition condition) {
        refuseTimeout(options.timeout().isPresent());
        if (value == null && options.ttl().isPresent()) {
            throw new IllegalArgumentException("a deletion has no TTL");
        }
        String ttl = options.ttl().map(Operation::ttl).orElse(null);
        return add(new Line(method, key, value, options.replicas().orElse(null), ttl, condition));
    }

    private static void refuseTimeout(boolean isThere) {
        if (isThere) {
            throw new IllegalArgumentException("an operation of a batch has no time limit of its own");
        }
    }

    private Batch add(Line line) {
        Objects.requireNonNull(line.key, "key");
        long more = line.bytes();
        if (lines.size() >= LINES_MAX || bytes + more > BYTES_MAX) {
            throw new IllegalStateException(
                    "a batch has at most " + LINES_MAX + " operations and " + BYTES_MAX + " bytes");
        }
        lines.add(line);
        bytes += more;
        return this;
    }

    /** What it has now; later changes of the batch do not reach what is being sent. */
    List<Line> lines() {
        return List.copyOf(lines);
    }

    /**
     * The request's body, made while it is sent.
     *
     * @param defaults the replicas of operations that do not say; null leaves them to the node
     */
    static BodyPublisher body(List<Line> lines, Replicas defaults) {
        return BodyPublishers.ofByteArrays(() -> new Blocks(lines.iterator(), defaults));
    }

    /** Lines in blocks, each made when it is wanted. */
    private record Blocks(Iterator<Line> lines, Replicas defaults) implements Iterator<byte[]> {
        @Override
        public boolean hasNext() {
            return lines.hasNext();
        }

        @Override
        public byte[] next() {
            if (!lines.hasNext()) {
                throw new NoSuchElementException();
            }
            ByteArrayOutputStream block = new ByteArrayOutputStream(BLOCK_BYTES);
            while (lines.hasNext() && block.size() < BLOCK_BYTES) {
                lines.next().write(block, defaults);
            }
            return block.toByteArray();
        }
    }

    /**
     * One operation.
     *
     * @param method as of the request that it could be
     * @param value what is put; null for others
     * @param replicas null for the client's
     * @param ttl as the node reads it; null without
     * @param condition null without
     */
    record Line(String method, Key key, byte[] value, Replicas replicas, String ttl, Condition condition) {
        boolean isWrite() {
            return !method.equals("GET");
        }

        /** In words. */
        String words() {
            return method + " " + key + (replicas == null ? "" : " " + replicas);
        }

        /** How long the line is at most. */
        long bytes() {
            long valueBytes = value == null ? 0 : isPlain(value) ? value.length : (value.length + 2L) / 3 * 4;
            return head(replicas == null ? WIDEST : replicas).length() + valueBytes + tail().length();
        }

        void write(ByteArrayOutputStream out, Replicas defaults) {
            out.writeBytes(head(replicas == null ? defaults : replicas).getBytes(StandardCharsets.US_ASCII));
            if (value != null) {
                out.writeBytes(isPlain(value) ? value : Base64.getEncoder().encode(value));
            }
            out.writeBytes(tail().getBytes(StandardCharsets.US_ASCII));
        }

        /** The line up to the value's first byte. */
        private String head(Replicas replicas) {
            StringBuilder head = new StringBuilder(64 + 2 * key.length());
            head.append("{\"op\":\"").append(method.toLowerCase(Locale.ROOT)).append('"');
            boolean isPlainKey = isPlain(key.shared());
            member(head, isPlainKey ? "key" : "key_base64", isPlainKey
                    ? key.utf8() : Base64.getEncoder().encodeToString(key.shared()));
            if (replicas != null) {
                member(head, "replicas", replicas.toString());
            }
            if (ttl != null) {
                member(head, "ttl", ttl);
            }
            if (condition != null) {
                String name = condition.header().equals("If-Match") ? "if_match" : "if_none_match";
                // An entity tag has quotes, which the text of a line must not; the version alone means the same.
                member(head, name, condition.tags().replace("\"", ""));
            }
            if (value != null) {
                head.append(",\"").append(isPlain(value) ? "value" : "value_base64").append("\":\"");
            }
            return head.toString();
        }

        private String tail() {
            return value == null ? "}\n" : "\"}\n";
        }

        private static void member(StringBuilder line, String name, String text) {
            line.append(",\"").append(name).append("\":\"").append(text).append('"');
        }

        /** Whether the bytes are text that stands in JSON as it is. */
        private static boolean isPlain(byte[] bytes) {
            for (byte b : bytes) {
                if (b < 0x20 || b == 0x7f || b == '"' || b == '\\') {
                    return false;
                }
            }
            return true;
        }
    }
}

package io.kvorum.client;

import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.List;

/** Takes an answer's bytes as they come and gives its lines one at a time. */
final class Lines<T> {
    /** What reads a line. */
    interface Parser<T> {
        T parse(byte[] line, int length) throws Json.MalformedException;
    }

    private final int lineBytesMax;
    private final Parser<T> parser;
    private final ArrayDeque<ByteBuffer> buffers = new ArrayDeque<>();
    /** The beginning of a line whose end has not come. */
    private byte[] begun = new byte[0];
    private int begunBytes;

    Lines(int lineBytesMax, Parser<T> parser) {
        this.lineBytesMax = lineBytesMax;
        this.parser = parser;
    }

    void add(List<ByteBuffer> more) {
        for (ByteBuffer buffer : more) {
            if (buffer.hasRemaining()) {
                buffers.add(buffer);
            }
        }
    }

    /** Whether there are bytes that {@link #next} has not looked at. */
    boolean hasUnread() {
        return !buffers.isEmpty();
    }

    /** Whether the last line has not ended. */
    boolean isWithinLine() {
        return begunBytes > 0;
    }

    void clear() {
        buffers.clear();
        begun = new byte[0];
        begunBytes = 0;
    }

    /** The next line, read; null if more bytes are needed for it. */
    T next() throws Json.MalformedException {
        while (!buffers.isEmpty()) {
            ByteBuffer buffer = buffers.peek();
            int length = 0;
            int available = buffer.remaining();
            int at = buffer.position();
            while (length < available && buffer.get(at + length) != '\n') {
                length++;
            }
            if (length > lineBytesMax - begunBytes) {
                throw new Json.MalformedException("a line is over the limit of " + lineBytesMax + " bytes");
            }
            if (begun.length < begunBytes + length) {
                begun = Arrays.copyOf(begun, Math.max(begunBytes + length, begun.length * 2));
            }
            buffer.get(begun, begunBytes, length);
            begunBytes += length;
            boolean isEnd = buffer.hasRemaining();
            if (isEnd) {
                buffer.get();
            }
            if (!buffer.hasRemaining()) {
                buffers.remove();
            }
            if (isEnd) {
                int line = begunBytes;
                begunBytes = 0;
                return parser.parse(begun, line);
            }
        }
        return null;
    }
}

package io.kvorum.client;

import java.nio.ByteBuffer;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;

/** Takes a range's bytes as they come and gives its entries one at a time: a line of JSON each. */
final class EntryLines {
    private final int lineBytesMax;
    private final ArrayDeque<ByteBuffer> buffers = new ArrayDeque<>();
    /** The beginning of a line whose end has not come. */
    private byte[] begun = new byte[0];
    private int begunBytes;

    EntryLines(int lineBytesMax) {
        this.lineBytesMax = lineBytesMax;
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

    /** The next entry; null if more bytes are needed for it. */
    Entry next() throws Json.MalformedException {
        while (!buffers.isEmpty()) {
            ByteBuffer buffer = buffers.peek();
            int length = 0;
            int available = buffer.remaining();
            int at = buffer.position();
            while (length < available && buffer.get(at + length) != '\n') {
                length++;
            }
            if (length > lineBytesMax - begunBytes) {
                throw new Json.MalformedException("an entry is over the limit of " + lineBytesMax + " bytes");
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
                return parse(begun, line);
            }
        }
        return null;
    }

    static Entry parse(byte[] line, int length) throws Json.MalformedException {
        Map<String, Object> object = Json.parseObject(line, 0, length);
        String version = Json.string(object.get("version"), "version");
        Object expires = object.get("expires");
        try {
            return new Entry(
                    Key.of(bytes(object, "key")),
                    bytes(object, "value"),
                    Version.parse(version).orElseThrow(() -> new Json.MalformedException("no version: " + version)),
                    instant(expires));
        } catch (IllegalArgumentException notAKey) {
            throw new Json.MalformedException(notAKey.getMessage());
        }
    }

    private static Instant instant(Object millis) throws Json.MalformedException {
        if (millis == null) {
            return null;
        }
        // A number of so many digits comes as a double: as far away as this platform can say.
        boolean isTooLarge = millis instanceof Double number && number >= 1e17;
        return Instant.ofEpochMilli(isTooLarge ? Long.MAX_VALUE : Json.whole(millis, "expires"));
    }

    private static byte[] bytes(Map<String, Object> object, String name) throws Json.MalformedException {
        Object text = object.get(name);
        if (text != null) {
            return Json.string(text, name).getBytes(java.nio.charset.StandardCharsets.UTF_8);
        }
        return Base64.getDecoder().decode(Json.string(object.get(name + "_base64"), name));
    }
}

package io.kvorum.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class JsonTest {
    private static Map<String, Object> parse(String text) throws Json.MalformedException {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        return Json.parseObject(bytes, 0, bytes.length);
    }

    @Test
    void values() throws Exception {
        Map<String, Object> object = parse(
                " {\"a\" : [1, -2.5e1, true, false, null, {}, []], \"é\\u00e9\\ud83d\\ude00\\n\\\"\\/\": \"x\"}\n");
        assertEquals(java.util.Arrays.asList(1L, -25.0, true, false, null, Map.of(), List.of()), object.get("a"));
        assertEquals("x", object.get("éé😀\n\"/"));
    }

    @Test
    void malformed() {
        for (String bad : new String[] {
            "", "{", "[]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":tru}", "{} x", "{\"a\":\"\\x\"}", "{\"a\":\"",
            "{\"a\":\"\\u12\"}", "{\"a\":--}", "{\"a\":" + "[".repeat(100_000)
        }) {
            assertThrows(Json.MalformedException.class, () -> parse(bad), bad);
        }
    }

    /** An expiry beyond everything that a date or a long can say is far away, and no reason to fail a range. */
    @Test
    void expiriesBeyondEveryDate() throws Exception {
        for (String millis : new String[] {"9007199254740991", "9223372036854775807", "18446744073709551615"}) {
            String text = "{\"expires\":" + millis + ",\"key\":\"a\",\"value\":\"\",\"version\":\""
                    + "ffffffffffffffff-ffffffffffffffff\"}";
            byte[] line = text.getBytes(StandardCharsets.UTF_8);
            Entry entry = EntryLines.parse(line, line.length);
            assertTrue(entry.expires().orElseThrow().toEpochMilli() >= 9007199254740991L, entry.toString());
            assertTrue(entry.version().instant().toEpochMilli() == (1L << 48) - 1, entry.toString());
        }
    }

    /** Lines as the node writes them, cut at every place. */
    @Test
    void linesOfARange() throws Exception {
        String text = "{\"expires\":11,\"key\":\"a\",\"value\":\"1\\n2\",\"version\":\"" + ScriptedServer.VERSION + "\"}\n"
                + "{\"key_base64\":\"/w==\",\"value_base64\":\"gA==\",\"version\":\"" + ScriptedServer.VERSION + "\"}\n";
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        for (int cut = 0; cut <= bytes.length; cut++) {
            Lines<Entry> lines = new Lines<>(1024, EntryLines::parse);
            lines.add(List.of(ByteBuffer.wrap(bytes, 0, cut), ByteBuffer.wrap(bytes, cut, bytes.length - cut)));
            Entry first = lines.next();
            assertEquals("1\n2", first.valueUtf8());
            assertEquals(11, first.expires().orElseThrow().toEpochMilli());
            Entry second = lines.next();
            assertArrayEquals(new byte[] {(byte) 0xff}, second.key().bytes());
            assertArrayEquals(new byte[] {(byte) 0x80}, second.value());
            assertNull(lines.next());
        }
        Lines<Entry> small = new Lines<>(50, EntryLines::parse);
        small.add(List.of(ByteBuffer.wrap(bytes)));
        assertThrows(Json.MalformedException.class, small::next);
    }
}

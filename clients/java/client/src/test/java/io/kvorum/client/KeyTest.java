package io.kvorum.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.nio.ByteBuffer;
import org.junit.jupiter.api.Test;

class KeyTest {
    /** Every byte alone: unreserved characters stand for themselves, all else is escaped, and a URI takes it as it is. */
    @Test
    void everyByteIsEscaped() {
        String unreserved = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
        for (int value = 0; value < 256; value++) {
            StringBuilder text = new StringBuilder();
            Key.of(new byte[] {(byte) value}).appendEscaped(text);
            boolean isPlain = unreserved.indexOf(value) >= 0;
            assertEquals(isPlain ? String.valueOf((char) value) : String.format("%%%02X", value), text.toString());
            URI uri = URI.create("http://h/v0/entity?id=" + text);
            assertEquals("id=" + text, uri.getRawQuery());
        }
    }

    /** All bytes at once come back. */
    @Test
    void escapedBytesComeBack() {
        byte[] all = new byte[256];
        for (int at = 0; at < 256; at++) {
            all[at] = (byte) at;
        }
        StringBuilder text = new StringBuilder();
        Key.of(all).appendEscaped(text);
        ByteArrayOutputStream decoded = new ByteArrayOutputStream();
        for (int at = 0; at < text.length(); at++) {
            if (text.charAt(at) == '%') {
                decoded.write(Integer.parseInt(text, at + 1, at + 3, 16));
                at += 2;
            } else {
                decoded.write(text.charAt(at));
            }
        }
        assertArrayEquals(all, decoded.toByteArray());
    }

    @Test
    void lengths() {
        assertThrows(IllegalArgumentException.class, () -> Key.of(""));
        assertThrows(IllegalArgumentException.class, () -> Key.of(new byte[1025]));
        assertThrows(IllegalArgumentException.class, () -> Key.of(ByteBuffer.allocate(1025)));
        assertEquals(1024, Key.of(new byte[1024]).length());
    }

    @Test
    void aBufferKeepsItsPosition() {
        ByteBuffer buffer = ByteBuffer.wrap(new byte[] {1, 2, 3}).position(1).slice();
        assertEquals(Key.of(new byte[] {2, 3}), Key.of(buffer));
        assertEquals(2, buffer.remaining());
    }

    @Test
    void orderIsUnsigned() {
        assertTrue(Key.of(new byte[] {(byte) 0x80}).compareTo(Key.of("a")) > 0);
        assertTrue(Key.of("a").compareTo(Key.of("ab")) < 0);
    }

    @Test
    void prefixesEndBehindTheLastKeyWithThem() {
        assertEquals(Key.of("user0"), Range.prefix("user/").end().orElseThrow());
        Range high = Range.prefix(Key.of(new byte[] {'a', (byte) 0xff, (byte) 0xff}));
        assertEquals(Key.of("b"), high.end().orElseThrow());
        assertTrue(Range.prefix(Key.of(new byte[] {(byte) 0xff})).end().isEmpty());
    }

    @Test
    void versions() {
        Version version = Version.parse("\"" + ScriptedServer.VERSION + "\"").orElseThrow();
        assertEquals(ScriptedServer.VERSION, version.toString());
        assertEquals(0x01a2_0101_02a3L, version.instant().toEpochMilli());
        Version high = Version.parse("ffffffffffffffff-0000000000000000").orElseThrow();
        assertTrue(high.compareTo(version) > 0, "words are unsigned");
        for (String bad : new String[] {"", "x", "01a2010102a30000_f9b45b5d62102c41", "01a2010102a3000g-f9b45b5d62102c41"}) {
            assertTrue(Version.parse(bad).isEmpty(), bad);
        }
    }
}

package io.kvorum.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import org.junit.jupiter.api.Test;

class TopologyTest {
    /** Two partitions, two of three nodes each. */
    static String describe(String epoch, List<String> urls, byte[] lists, int bits, int ranks) {
        StringBuilder nodes = new StringBuilder();
        for (String url : urls) {
            nodes.append(nodes.isEmpty() ? "" : ",").append("{\"id\":\"1\",\"url\":\"").append(url).append("\"}");
        }
        return "{\"epoch\":\"" + epoch + "\",\"token\":{\"hash\":\"xxh3-64\",\"seed\":\"6b766f72756d0001\"},"
                + "\"partition_bits\":" + bits + ",\"nodes\":[" + nodes + "],\"ranks\":" + ranks
                + ",\"preference_lists\":\"" + Base64.getEncoder().encodeToString(lists) + "\"}\n";
    }

    /** The same description, of a node that says its default FROM. */
    static String withDefaultFrom(String description, int from) {
        return description.replaceFirst("\\{", "{\"default_ack\":1,\"default_from\":" + from + ",");
    }

    private static Topology parse(String text) throws Json.MalformedException {
        return Topology.parse(text.getBytes(StandardCharsets.UTF_8));
    }

    @Test
    void placesKeys() throws Exception {
        List<String> urls = List.of("http://a:1", "http://b:1", "http://c:1");
        Topology topology = parse(describe("e1", urls, new byte[] {0, 2, 0, 1, 0, 0, 0, 2}, 1, 2));
        assertEquals("e1", topology.epoch());
        assertEquals(urls, topology.nodes());
        // Golden tokens: "a" is 0x239c…, "key-000123" 0x5f88…, "ключ" 0xbfa5….
        assertEquals(0, topology.partition(Key.of("a")));
        assertEquals(1, topology.partition(Key.of("ключ")));
        assertEquals(2, topology.place(0, 0));
        assertEquals(1, topology.place(0, 1));
        assertEquals(0, topology.place(1, 0));
        assertEquals(2, topology.place(1, 1));
        assertTrue(topology.defaultFrom().isEmpty());
        Topology fine = parse(describe("e", urls, new byte[2 << 12], 12, 1));
        assertEquals(569, fine.partition(Key.of("a")));
        assertEquals(1528, fine.partition(Key.of("key-000123")));
        assertEquals(347, fine.partition(Key.of(new byte[1024])));
    }

    @Test
    void readsTheDefaultOfTheNode() throws Exception {
        String description = describe("e", List.of("http://a:1", "http://b:1"), new byte[8], 1, 2);
        assertEquals(1, parse(withDefaultFrom(description, 1)).defaultFrom().getAsInt());
        assertEquals(2, parse(withDefaultFrom(description, 2)).defaultFrom().getAsInt());
    }

    @Test
    void refusesWhatWouldLeadAstray() {
        List<String> urls = List.of("http://a:1", "http://b:1");
        String good = describe("e", urls, new byte[8], 1, 2);
        for (String bad : new String[] {
            describe("e", urls, new byte[] {0, 2, 0, 0, 0, 0, 0, 0}, 1, 2),
            describe("e", urls, new byte[6], 1, 2),
            describe("e", urls, new byte[8], 17, 2),
            describe("e", urls, new byte[8], 0, 2),
            describe("e", urls, new byte[12], 1, 3),
            good.replace("xxh3-64", "crc32"),
            good.replace("6b766f72756d0001", "zz"),
            good.replace("AAAA", "!!!!"),
            withDefaultFrom(good, 0),
            withDefaultFrom(good, 3),
            "{}"
        }) {
            assertThrows(Json.MalformedException.class, () -> parse(bad), bad);
        }
    }
}

package io.kvorum.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.junit.jupiter.api.Test;

/** The hash against values that other implementations computed: a wrong token sends requests a hop too far. */
class Xxh3Test {
    private static final long TOKEN_SEED = 0x6b76_6f72_756d_0001L;

    /** The node's own golden tokens. */
    @Test
    void tokensOfTheNode() {
        Xxh3 hash = new Xxh3(TOKEN_SEED);
        assertEquals(0xde52_c276_ff4a_0848L, hash.hash(new byte[0]));
        assertEquals(0x239c_5507_cc7e_6d3cL, hash.hash("a".getBytes(StandardCharsets.UTF_8)));
        assertEquals(0x5f88_992d_586b_17f4L, hash.hash("key-000123".getBytes(StandardCharsets.UTF_8)));
        assertEquals(0xbfa5_749f_2966_738aL, hash.hash("ключ".getBytes(StandardCharsets.UTF_8)));
        assertEquals(0x15b6_c736_8fde_c8beL, hash.hash(new byte[1024]));
    }

    /**
     * Every length of a key, and some beyond it, with the tokens' seed and without one. The file holds
     * {@code length hash-with-seed hash-without} of the first bytes of one fixed sequence.
     */
    @Test
    void everyLength() throws Exception {
        byte[] sequence = new byte[2200];
        for (int at = 0; at < sequence.length; at++) {
            sequence[at] = (byte) (at * 0x9E3779B1 >>> 24);
        }
        Xxh3 seeded = new Xxh3(TOKEN_SEED);
        Xxh3 plain = new Xxh3(0);
        int lines = 0;
        try (var in = new BufferedReader(new InputStreamReader(
                Xxh3Test.class.getResourceAsStream("/xxh3-golden.txt"), StandardCharsets.US_ASCII))) {
            for (String line = in.readLine(); line != null; line = in.readLine(), lines++) {
                String[] fields = line.split(" ");
                byte[] input = Arrays.copyOf(sequence, Integer.parseInt(fields[0]));
                assertEquals(Long.parseUnsignedLong(fields[1], 16), seeded.hash(input), line);
                assertEquals(Long.parseUnsignedLong(fields[2], 16), plain.hash(input), line);
            }
        }
        assertEquals(1031, lines);
    }
}

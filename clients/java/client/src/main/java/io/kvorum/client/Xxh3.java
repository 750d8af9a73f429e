package io.kvorum.client;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * XXH3 with 64 bits and a seed: the hash that places keys.
 *
 * <p>Written out here because the JDK has none and the client has no dependencies. It is for keys, so it is plain
 * rather than vectorised; inputs of any length are right all the same. The letters follow Yann Collet's description
 * of the algorithm, so that the two can be laid side by side.
 */
final class Xxh3 {
    private static final long PRIME32_1 = 0x9E3779B1L;
    private static final long PRIME32_2 = 0x85EBCA77L;
    private static final long PRIME32_3 = 0xC2B2AE3DL;
    private static final long PRIME64_1 = 0x9E3779B185EBCA87L;
    private static final long PRIME64_2 = 0xC2B2AE3D27D4EB4FL;
    private static final long PRIME64_3 = 0x165667B19E3779F9L;
    private static final long PRIME64_4 = 0x85EBCA77C2B2AE63L;
    private static final long PRIME64_5 = 0x27D4EB2F165667C5L;
    private static final long PRIME_MX1 = 0x165667919E3779F9L;
    private static final long PRIME_MX2 = 0x9FB21C651E98DF25L;

    private static final int STRIPE_BYTES = 64;
    private static final int SECRET_STEP = 8;
    private static final int SECRET_BYTES = 192;
    /** Bytes that use the secret up once; then the accumulators are scrambled. */
    private static final int BLOCK_BYTES = STRIPE_BYTES * ((SECRET_BYTES - STRIPE_BYTES) / SECRET_STEP);

    private static final VarHandle LONGS =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    private static final VarHandle INTS =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);

    /** The algorithm's own secret, in hexadecimal. */
    private static final byte[] SECRET = java.util.HexFormat.of().parseHex(
            "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
                    + "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
                    + "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
                    + "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
                    + "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
                    + "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e");

    private final long seed;
    /** For inputs above 240 bytes: the secret mixed with the seed, made once. */
    private final byte[] seededSecret;

    /** A hash with this seed; it may be used by any number of threads. */
    Xxh3(long seed) {
        this.seed = seed;
        this.seededSecret = SECRET.clone();
        for (int at = 0; at < SECRET_BYTES; at += 16) {
            LONGS.set(seededSecret, at, long64(SECRET, at) + seed);
            LONGS.set(seededSecret, at + 8, long64(SECRET, at + 8) - seed);
        }
    }

    /** The hash of these bytes. */
    long hash(byte[] input) {
        int length = input.length;
        if (length > 240) {
            return hashLong(input);
        }
        if (length > 128) {
            return hash129To240(input);
        }
        if (length > 16) {
            return hash17To128(input);
        }
        if (length > 8) {
            return hash9To16(input);
        }
        if (length >= 4) {
            return hash4To8(input);
        }
        if (length > 0) {
            return hash1To3(input);
        }
        return avalanche64(seed ^ long64(SECRET, 56) ^ long64(SECRET, 64));
    }

    private long hash1To3(byte[] input) {
        int length = input.length;
        int combined = (input[0] & 0xff) << 16
                | (input[length >> 1] & 0xff) << 24
                | (input[length - 1] & 0xff)
                | length << 8;
        long flip = (int32(SECRET, 0) ^ int32(SECRET, 4)) + seed;
        return avalanche64((combined & 0xffffffffL) ^ flip);
    }

    private long hash4To8(byte[] input) {
        long mixed = seed ^ (Integer.reverseBytes((int) seed) & 0xffffffffL) << 32;
        long flip = (long64(SECRET, 8) ^ long64(SECRET, 16)) - mixed;
        long keyed = (int32(input, input.length - 4) + (int32(input, 0) << 32)) ^ flip;
        keyed ^= Long.rotateLeft(keyed, 49) ^ Long.rotateLeft(keyed, 24);
        keyed *= PRIME_MX2;
        keyed ^= (keyed >>> 35) + input.length;
        keyed *= PRIME_MX2;
        return keyed ^ keyed >>> 28;
    }

    private long hash9To16(byte[] input) {
        long flipLow = (long64(SECRET, 24) ^ long64(SECRET, 32)) + seed;
        long flipHigh = (long64(SECRET, 40) ^ long64(SECRET, 48)) - seed;
        long low = long64(input, 0) ^ flipLow;
        long high = long64(input, input.length - 8) ^ flipHigh;
        return avalanche(input.length + Long.reverseBytes(low) + high + foldedProduct(low, high));
    }

    private long hash17To128(byte[] input) {
        int length = input.length;
        long sum = length * PRIME64_1;
        for (int pair = (length - 1) / 32; pair >= 0; pair--) {
            sum += mix16(input, pair * 16, SECRET, pair * 32);
            sum += mix16(input, length - 16 * (pair + 1), SECRET, pair * 32 + 16);
        }
        return avalanche(sum);
    }

    private long hash129To240(byte[] input) {
        int length = input.length;
        long sum = length * PRIME64_1;
        for (int at = 0; at < 128; at += 16) {
            sum += mix16(input, at, SECRET, at);
        }
        sum = avalanche(sum);
        for (int at = 128; at + 16 <= length; at += 16) {
            sum += mix16(input, at, SECRET, at - 128 + 3);
        }
        sum += mix16(input, length - 16, SECRET, 136 - 17);
        return avalanche(sum);
    }

    private long hashLong(byte[] input) {
        int length = input.length;
        long[] sums = {
            PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1
        };
        // The last stripe is read on its own below, also where the input ends with a whole one.
        int stripesEnd = (length - 1) / STRIPE_BYTES * STRIPE_BYTES;
        for (int at = 0; at < stripesEnd; at += STRIPE_BYTES) {
            int inBlock = at % BLOCK_BYTES;
            accumulate(sums, input, at, inBlock / STRIPE_BYTES * SECRET_STEP);
            if (inBlock + STRIPE_BYTES == BLOCK_BYTES) {
                scramble(sums);
            }
        }
        accumulate(sums, input, length - STRIPE_BYTES, SECRET_BYTES - STRIPE_BYTES - 7);
        long merged = length * PRIME64_1;
        for (int pair = 0; pair < 4; pair++) {
            merged += foldedProduct(
                    sums[2 * pair] ^ long64(seededSecret, 11 + 16 * pair),
                    sums[2 * pair + 1] ^ long64(seededSecret, 11 + 16 * pair + 8));
        }
        return avalanche(merged);
    }

    private void accumulate(long[] sums, byte[] input, int at, int secretAt) {
        for (int lane = 0; lane < 8; lane++) {
            long value = long64(input, at + 8 * lane);
            long keyed = value ^ long64(seededSecret, secretAt + 8 * lane);
            sums[lane ^ 1] += value;
            sums[lane] += (keyed & 0xffffffffL) * (keyed >>> 32);
        }
    }

    private void scramble(long[] sums) {
        for (int lane = 0; lane < 8; lane++) {
            long key = long64(seededSecret, SECRET_BYTES - STRIPE_BYTES + 8 * lane);
            sums[lane] = (sums[lane] ^ sums[lane] >>> 47 ^ key) * PRIME32_1;
        }
    }

    private long mix16(byte[] input, int at, byte[] secret, int secretAt) {
        return foldedProduct(
                long64(input, at) ^ (long64(secret, secretAt) + seed),
                long64(input, at + 8) ^ (long64(secret, secretAt + 8) - seed));
    }

    /** The two halves of the 128-bit product, xored. */
    private static long foldedProduct(long left, long right) {
        // Math.unsignedMultiplyHigh came with Java 18: a negative factor is one that is 2^64 too small.
        long high = Math.multiplyHigh(left, right) + (left >> 63 & right) + (right >> 63 & left);
        return left * right ^ high;
    }

    private static long avalanche(long hash) {
        hash ^= hash >>> 37;
        hash *= PRIME_MX1;
        return hash ^ hash >>> 32;
    }

    private static long avalanche64(long hash) {
        hash ^= hash >>> 33;
        hash *= PRIME64_2;
        hash ^= hash >>> 29;
        hash *= PRIME64_3;
        return hash ^ hash >>> 32;
    }

    private static long long64(byte[] bytes, int at) {
        return (long) LONGS.get(bytes, at);
    }

    private static long int32(byte[] bytes, int at) {
        return (int) INTS.get(bytes, at) & 0xffffffffL;
    }
}

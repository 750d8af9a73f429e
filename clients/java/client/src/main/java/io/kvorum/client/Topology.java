package io.kvorum.client;

import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;

/**
 * Where keys belong, as a node describes it at {@code /v0/topology}. Immutable.
 *
 * <p>A key's token is its XXH3 hash; the token's top bits are its partition; each partition has a preference list, of
 * which the first {@code from} nodes hold a record.
 */
final class Topology {
    private static final int PARTITION_BITS_MAX = 16;

    private final String epoch;
    private final Xxh3 hash;
    private final int partitionBits;
    private final int ranks;
    private final List<String> nodes;
    /** For each partition in turn, {@link #ranks} places in {@link #nodes}: two bytes each, big-endian. */
    private final byte[] lists;
    /** FROM of a request that names none; 0 where the node does not say. */
    private final int defaultFrom;

    private Topology(
            String epoch, Xxh3 hash, int partitionBits, int ranks, List<String> nodes, byte[] lists, int defaultFrom) {
        this.epoch = epoch;
        this.hash = hash;
        this.partitionBits = partitionBits;
        this.ranks = ranks;
        this.nodes = nodes;
        this.lists = lists;
        this.defaultFrom = defaultFrom;
    }

    /** Reads and checks a description: nothing in it can later lead outside of its lists. */
    static Topology parse(byte[] body) throws Json.MalformedException {
        Map<String, Object> top = Json.parseObject(body, 0, body.length);
        Map<String, Object> token = Json.object(top.get("token"), "token");
        String hash = Json.string(token.get("hash"), "token.hash");
        if (!hash.equals("xxh3-64")) {
            throw new Json.MalformedException("tokens are made by " + hash + ", which is not known here");
        }
        long seed;
        byte[] lists;
        try {
            seed = Long.parseUnsignedLong(Json.string(token.get("seed"), "token.seed"), 16);
            lists = Base64.getDecoder().decode(Json.string(top.get("preference_lists"), "preference_lists"));
        } catch (IllegalArgumentException notUnderstood) {
            throw new Json.MalformedException("token.seed or preference_lists is not understood");
        }
        List<String> nodes = new ArrayList<>();
        for (Object node : Json.list(top.get("nodes"), "nodes")) {
            nodes.add(Json.string(Json.object(node, "a node").get("url"), "a node's url"));
        }
        long bits = Json.whole(top.get("partition_bits"), "partition_bits");
        long ranks = Json.whole(top.get("ranks"), "ranks");
        if (bits < 1 || bits > PARTITION_BITS_MAX || ranks < 1 || ranks > nodes.size()) {
            throw new Json.MalformedException("partition_bits or ranks is out of range");
        }
        if (lists.length != ranks * 2 << bits) {
            throw new Json.MalformedException("preference_lists has another length than its ranks say");
        }
        for (int at = 0; at < lists.length; at += 2) {
            if (place(lists, at) >= nodes.size()) {
                throw new Json.MalformedException("preference_lists names a node that is not there");
            }
        }
        // Nodes of earlier releases do not say.
        Object from = top.get("default_from");
        long defaultFrom = from == null ? 0 : Json.whole(from, "default_from");
        if (from != null && (defaultFrom < 1 || defaultFrom > nodes.size())) {
            throw new Json.MalformedException("default_from is not between 1 and the number of nodes");
        }
        String epoch = Json.string(top.get("epoch"), "epoch");
        return new Topology(
                epoch, new Xxh3(seed), (int) bits, (int) ranks, List.copyOf(nodes), lists, (int) defaultFrom);
    }

    /** What names it: another topology has another epoch. */
    String epoch() {
        return epoch;
    }

    /** The URLs of all nodes. */
    List<String> nodes() {
        return nodes;
    }

    /** How many nodes of a preference list are known. */
    int ranks() {
        return ranks;
    }

    /** FROM of a request that names none, as far as the node says; empty for nodes of earlier releases. */
    OptionalInt defaultFrom() {
        return defaultFrom == 0 ? OptionalInt.empty() : OptionalInt.of(defaultFrom);
    }

    /** The partition of a key. */
    int partition(Key key) {
        return (int) (hash.hash(key.shared()) >>> 64 - partitionBits);
    }

    /** The place in {@link #nodes()} of the node at this rank (from 0) of a partition's preference list. */
    int place(int partition, int rank) {
        return place(lists, (partition * ranks + rank) * 2);
    }

    private static int place(byte[] lists, int at) {
        return (lists[at] & 0xff) << 8 | lists[at + 1] & 0xff;
    }
}

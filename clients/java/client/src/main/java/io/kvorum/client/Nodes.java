package io.kvorum.client;

import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The nodes that are known, who of them is well, and where keys belong.
 *
 * <p>The topology is learned from the nodes: an answer with an epoch other than the known one makes the client ask for
 * it anew, once at a time and no more often than every {@link #REFRESH_INTERVAL}, because nodes may disagree for a
 * while. Until it is known, and wherever it does not help, any node does.
 */
final class Nodes {
    private static final Duration PROBE_DELAY_MIN = Duration.ofMillis(100);
    private static final Duration PROBE_DELAY_MAX = Duration.ofSeconds(5);
    private static final Duration PROBE_TIMEOUT = Duration.ofSeconds(2);
    private static final Duration REFRESH_INTERVAL = Duration.ofSeconds(1);
    /** FROM of a request that names none, at nodes that do not say their own default. */
    private static final int FROM_DEFAULT = 3;
    /** 65,536 partitions with 8 ranks are 1.4 MB; the rest is for the nodes' URLs. */
    private static final int TOPOLOGY_BYTES_MAX = 16 << 20;

    /**
     * What is known at one moment.
     *
     * @param topology null where it is not known (yet)
     * @param placed the topology's nodes, in its order; empty without one
     * @param tiers what to ask where placement does not matter: the topology's nodes, then those configured
     */
    private record View(Topology topology, List<Node> placed, List<List<Node>> tiers) {}

    private final Core core;
    private final List<Node> configured;
    private final boolean isRouting;
    private final AtomicInteger turn = new AtomicInteger(ThreadLocalRandom.current().nextInt());
    private final AtomicBoolean refreshing = new AtomicBoolean();
    private volatile long refreshedAt = System.nanoTime() - REFRESH_INTERVAL.toNanos();
    private volatile View view;

    Nodes(Core core, Collection<String> urls, boolean isRouting) {
        this.core = core;
        this.isRouting = isRouting;
        Map<String, Node> byBase = new LinkedHashMap<>();
        for (String url : urls) {
            Node node = Node.at(url);
            byBase.putIfAbsent(node.base(), node);
        }
        this.configured = List.copyOf(byBase.values());
        this.view = new View(null, List.of(), List.of(configured));
    }

    /** A number for an operation, one more than for the last, so that all nodes get their share. */
    int nextTurn() {
        return turn.getAndIncrement();
    }

    /**
     * Where the coming attempt goes. All attempts of an operation have its turn.
     *
     * @param hasRivals whether other clients' operations of this kind on the key overtake each other if they go through
     *     different nodes. One node lets them share their rounds, so all go to the key's first replica
     */
    Node choose(Key key, Replicas replicas, boolean hasRivals, int turn, Collection<Node> tried, long now) {
        View view = this.view;
        List<List<Node>> tiers = tiers(view, key, replicas, hasRivals);
        boolean isPlaced = hasRivals && tiers.size() > view.tiers.size();
        return Choice.choose(tiers, isPlaced ? 0 : turn, tried, now);
    }

    /** Whether there is another node that is well than those that were tried. */
    boolean hasOther(Collection<Node> tried, long now) {
        for (List<Node> tier : view.tiers) {
            for (Node node : tier) {
                if (!tried.contains(node) && node.isUsable(now)) {
                    return true;
                }
            }
        }
        return false;
    }

    private static List<List<Node>> tiers(View view, Key key, Replicas replicas, boolean hasRivals) {
        Topology topology = view.topology;
        if (topology == null || key == null) {
            return view.tiers;
        }
        int wanted = replicas == null ? topology.defaultFrom().orElse(FROM_DEFAULT) : replicas.from();
        int from = Math.min(wanted, topology.ranks());
        if (from >= view.placed.size() && !hasRivals) {
            return view.tiers;
        }
        int partition = topology.partition(key);
        List<Node> holders = new ArrayList<>(from);
        for (int rank = 0; rank < from; rank++) {
            holders.add(view.placed.get(topology.place(partition, rank)));
        }
        List<List<Node>> tiers = new ArrayList<>(view.tiers.size() + 1);
        tiers.add(holders);
        tiers.addAll(view.tiers);
        return tiers;
    }

    /** What names the known topology; null while none is known. */
    String epoch() {
        Topology topology = view.topology;
        return topology == null ? null : topology.epoch();
    }

    /** How many nodes are set aside. */
    int asideCount() {
        return (int) view.tiers.stream().flatMap(List::stream).distinct().filter(Node::isAside).count();
    }

    /** An answer of {@code node} carried this epoch. */
    void notice(String epoch, Node node) {
        if (!isRouting || epoch == null || epoch.isEmpty() || epoch.equals(epoch())) {
            return;
        }
        long now = System.nanoTime();
        HttpClient http = core.http();
        if (http == null || now - refreshedAt < REFRESH_INTERVAL.toNanos()
                || !refreshing.compareAndSet(false, true)) {
            return;
        }
        refreshedAt = now;
        HttpRequest request = core.request(node, "/v0/topology")
                .timeout(core.timeout()).build();
        http.sendAsync(request, info -> new Collector(TOPOLOGY_BYTES_MAX, body -> {
            if (info.statusCode() == 200) {
                learn(body);
            }
        })).whenComplete((done, failed) -> refreshing.set(false));
    }

    private void learn(byte[] body) {
        Topology topology;
        List<Node> placed = new ArrayList<>();
        try {
            topology = Topology.parse(body);
            Map<String, Node> known = new LinkedHashMap<>();
            view.tiers.forEach(tier -> tier.forEach(node -> known.put(node.base(), node)));
            configured.forEach(node -> known.put(node.base(), node));
            for (String url : topology.nodes()) {
                // Whoever was known stays the same object, with what is known of its health.
                placed.add(known.computeIfAbsent(Node.normalize(url), Node::at));
            }
        } catch (Json.MalformedException | IllegalArgumentException notUnderstood) {
            // Without it requests take a hop more; the next answer of another epoch makes another attempt.
            System.getLogger(Nodes.class.getName())
                    .log(System.Logger.Level.WARNING, "a topology was not understood: {0}", notUnderstood.getMessage());
            return;
        }
        // Who was told to call nodes by https is not led to others: its token would go over the network in clear.
        if (configured.stream().allMatch(Node::isSecured) && !placed.stream().allMatch(Node::isSecured)) {
            return;
        }
        view = new View(topology, List.copyOf(placed), List.of(List.copyOf(placed), configured));
    }

    /** A node failed in a way that another request would, too: sets it aside until a probe succeeds. */
    void suspect(Node node) {
        if (node.setAside()) {
            scheduleProbe(node, PROBE_DELAY_MIN);
        }
    }

    private void scheduleProbe(Node node, Duration delay) {
        // Up to half as long again, so that clients which lost a node together do not come back together.
        long nanos = delay.toNanos() + ThreadLocalRandom.current().nextLong(delay.toNanos() / 2);
        core.later(() -> probe(node), nanos);
    }

    private void probe(Node node) {
        HttpClient http = core.http();
        boolean isForgotten = view.tiers.stream().noneMatch(tier -> tier.contains(node));
        if (http == null || isForgotten) {
            return;
        }
        HttpRequest request = core.request(node, "/v0/status")
                .timeout(PROBE_TIMEOUT).build();
        http.sendAsync(request, BodyHandlers.discarding()).whenComplete((answer, failed) -> {
            if (failed == null && answer.statusCode() == 200) {
                node.takeBack();
                return;
            }
            long doubled = PROBE_DELAY_MIN.toNanos() << Math.min(node.countFailedProbe(), 20);
            scheduleProbe(node, Duration.ofNanos(Math.min(doubled, PROBE_DELAY_MAX.toNanos())));
        });
    }

    /** The wait that {@code duration} from now means on the clock that nodes rest by. */
    static long until(Duration duration) {
        return System.nanoTime() + TimeUnit.NANOSECONDS.convert(duration);
    }
}

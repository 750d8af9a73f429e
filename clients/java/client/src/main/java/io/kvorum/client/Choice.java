package io.kvorum.client;

import java.util.Collection;
import java.util.List;

/** Which node an attempt goes to. Decisions only: time is an argument, and somebody else does the asking. */
final class Choice {
    private Choice() {}

    /**
     * The best node among tiers of them, the better tier first.
     *
     * <p>Within a tier, the turn decides. Nodes that this operation has tried come after all that it has not; nodes
     * that rest or are set aside come last, because even they are better than none.
     *
     * @param tiers not empty in sum
     * @param turn moves on with each operation, so that all nodes get their share
     * @param tried nodes that this operation has asked
     */
    static Node choose(List<List<Node>> tiers, int turn, Collection<Node> tried, long now) {
        Node triedOne = null;
        Node restingOne = null;
        Node asideOne = null;
        for (List<Node> tier : tiers) {
            int size = tier.size();
            for (int step = 0; step < size; step++) {
                Node node = tier.get(Math.floorMod(turn + step, size));
                if (node.isUsable(now)) {
                    if (!tried.contains(node)) {
                        return node;
                    }
                    triedOne = triedOne == null || isLastOf(tried, triedOne) ? node : triedOne;
                } else if (!node.isAside()) {
                    boolean isEarlier = restingOne == null || node.restLeft(now) < restingOne.restLeft(now);
                    restingOne = isEarlier ? node : restingOne;
                } else if (asideOne == null || tried.contains(asideOne) && !tried.contains(node)) {
                    asideOne = node;
                }
            }
        }
        return triedOne != null ? triedOne : restingOne != null ? restingOne : asideOne;
    }

    /** Whether it is the node that was tried last, which is the worst of those that were tried. */
    private static boolean isLastOf(Collection<Node> tried, Node node) {
        Node last = null;
        for (Node each : tried) {
            last = each;
        }
        return node == last;
    }
}

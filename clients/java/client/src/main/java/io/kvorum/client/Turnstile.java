package io.kvorum.client;

import java.util.Iterator;
import java.util.LinkedHashSet;

/**
 * How many operations are in flight, and who waits for a place.
 *
 * <p>Nobody blocks here: who cannot go in is called back when it is its turn. Every grant must be given back with one
 * {@link #leave()}. The lock guards the count and the line, and is held for a few instructions.
 */
final class Turnstile {
    enum Entry { GRANTED, WAITING, REFUSED }

    private final int insideMax;
    private final int waitingMax;
    private int inside;
    /** In the order of their coming. A set, because who gives up leaves from the middle. */
    private final LinkedHashSet<Runnable> waiting = new LinkedHashSet<>();

    Turnstile(int insideMax, int waitingMax) {
        this.insideMax = insideMax;
        this.waitingMax = waitingMax;
    }

    /** Goes in, or waits for {@code turn} to be called by another's {@link #leave()}. */
    synchronized Entry enter(Runnable turn) {
        // Who comes later must not overtake those who wait.
        if (inside < insideMax && waiting.isEmpty()) {
            inside++;
            return Entry.GRANTED;
        }
        if (waiting.size() >= waitingMax) {
            return Entry.REFUSED;
        }
        waiting.add(turn);
        return Entry.WAITING;
    }

    /** Waits no more. False if it was not waiting (any more): its turn was or will be called. */
    synchronized boolean giveUp(Runnable turn) {
        return waiting.remove(turn);
    }

    /** Gives a place back. Returns whose turn it is now, holding that place; null if nobody's. */
    synchronized Runnable leave() {
        Iterator<Runnable> line = waiting.iterator();
        if (!line.hasNext()) {
            inside--;
            return null;
        }
        Runnable turn = line.next();
        line.remove();
        return turn;
    }

    synchronized int inside() {
        return inside;
    }

    synchronized int waiting() {
        return waiting.size();
    }
}

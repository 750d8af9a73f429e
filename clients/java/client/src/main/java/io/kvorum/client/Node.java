package io.kvorum.client;

import java.net.URI;
import java.util.Locale;

/** A node as it is seen from here: where it is, and what speaks against asking it. */
final class Node {
    /** {@code http://host:port}, without a slash at the end. */
    private final String base;
    private final URI uri;
    /** Set aside after a failure, until a probe succeeds. */
    private volatile boolean aside;
    /** Asked to be left alone until this instant of {@link System#nanoTime()}; only where {@link #rests}. */
    private volatile long restsUntil;
    private volatile boolean rests;
    /** Probes that failed in a row. Touched by one probe at a time only. */
    private int failedProbes;

    private Node(String base) {
        this.base = base;
        this.uri = URI.create(base);
    }

    /**
     * The node at this URL.
     *
     * @throws IllegalArgumentException if it is not {@code http://host[:port]} or {@code https://host[:port]}
     */
    static Node at(String url) {
        return new Node(normalize(url));
    }

    /** The one spelling of a URL here, so that a node known from two sources is one node. */
    static String normalize(String url) {
        URI uri = URI.create(url);
        boolean isHttp = "http".equalsIgnoreCase(uri.getScheme()) || "https".equalsIgnoreCase(uri.getScheme());
        boolean isBare = (uri.getRawPath() == null || uri.getRawPath().isEmpty() || uri.getRawPath().equals("/"))
                && uri.getRawQuery() == null && uri.getRawFragment() == null && uri.getRawUserInfo() == null;
        if (!isHttp || uri.getHost() == null || !isBare) {
            throw new IllegalArgumentException("a node is http://host:port or https://host:port; this is " + url);
        }
        String base = uri.getScheme().toLowerCase(Locale.ROOT) + "://" + uri.getHost().toLowerCase(Locale.ROOT);
        return uri.getPort() < 0 ? base : base + ":" + uri.getPort();
    }

    String base() {
        return base;
    }

    /** Whether it is called with TLS. */
    boolean isSecured() {
        return base.startsWith("https:");
    }

    URI uri() {
        return uri;
    }

    boolean isAside() {
        return aside;
    }

    /** Sets the node aside; false if it was already. */
    synchronized boolean setAside() {
        boolean isNew = !aside;
        aside = true;
        if (isNew) {
            failedProbes = 0;
        }
        return isNew;
    }

    void takeBack() {
        aside = false;
    }

    int countFailedProbe() {
        return ++failedProbes;
    }

    void rest(long until) {
        restsUntil = until;
        rests = true;
    }

    /** Nanoseconds until the node may be asked again; 0 if it may be now. */
    long restLeft(long now) {
        return rests ? Math.max(0, restsUntil - now) : 0;
    }

    boolean isUsable(long now) {
        return !aside && restLeft(now) == 0;
    }

    @Override
    public String toString() {
        return base;
    }
}

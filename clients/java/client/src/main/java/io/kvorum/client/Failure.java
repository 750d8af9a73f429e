package io.kvorum.client;

import java.net.ConnectException;
import java.net.NoRouteToHostException;
import java.net.UnknownHostException;
import java.net.http.HttpConnectTimeoutException;
import java.nio.channels.UnresolvedAddressException;
import java.time.Duration;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Why one attempt failed, and the rules that follow from it.
 *
 * @param cause the kind
 * @param status the HTTP status; 0 where there was no answer
 * @param why in words, for people
 * @param retryAfter when the node wants to be asked again; null where it did not say
 * @param answer the whole answer; null where there was none
 * @param thrown what was thrown; null where nothing was
 */
record Failure(Cause cause, int status, String why, Duration retryAfter, Answer answer, Throwable thrown) {
    enum Cause {
        /** No connection could be made; nothing was sent. */
        CONNECT,
        /** The connection was lost before the answer was complete. */
        LOST,
        /** No answer within the patience for one attempt. */
        IMPATIENT,
        /** An answer that says no. */
        STATUS,
        /** An answer that is none of a node's. */
        UNEXPECTED,
        /** The attempt could not even be begun. */
        LOCAL
    }

    private static final int MESSAGE_CHARS_MAX = 512;
    private static final Duration RETRY_AFTER_MAX = Duration.ofMinutes(5);
    private static final Pattern NOT_ENOUGH = Pattern.compile(
            "(\\d{1,5}) of the (\\d{1,5}) replicas that must confirm \\(of (\\d{1,5})\\)");

    static Failure thrown(Throwable thrown) {
        Throwable cause = thrown;
        while (cause instanceof java.util.concurrent.CompletionException && cause.getCause() != null) {
            cause = cause.getCause();
        }
        for (Throwable each = cause; each != null; each = each.getCause()) {
            if (each instanceof ConnectException
                    || each instanceof HttpConnectTimeoutException
                    || each instanceof NoRouteToHostException
                    || each instanceof UnknownHostException
                    || each instanceof UnresolvedAddressException) {
                return new Failure(Cause.CONNECT, 0, "no connection: " + words(each), null, null, cause);
            }
            if (each instanceof TooLarge) {
                return new Failure(Cause.UNEXPECTED, 0, each.getMessage(), null, null, null);
            }
        }
        return new Failure(Cause.LOST, 0, "the connection was lost: " + words(cause), null, null, cause);
    }

    /** That an answer is over the limit. */
    static final class TooLarge extends java.io.IOException {
        private static final long serialVersionUID = 1;

        TooLarge(long bytesMax) {
            super("the answer is over the limit of " + bytesMax + " bytes");
        }
    }

    static Failure impatient(Duration patience) {
        return new Failure(
                Cause.IMPATIENT, 0, "no answer within " + patience.toMillis() + " ms", null, null, null);
    }

    static Failure status(Answer answer) {
        return new Failure(
                Cause.STATUS, answer.status(), answer.line(MESSAGE_CHARS_MAX), retryAfter(answer), answer, null);
    }

    static Failure unexpected(String why) {
        return new Failure(Cause.UNEXPECTED, 0, why, null, null, null);
    }

    static Failure local(Throwable thrown) {
        return new Failure(Cause.LOCAL, 0, "the request could not be begun: " + words(thrown), null, null, thrown);
    }

    private static String words(Throwable thrown) {
        return thrown.getMessage() == null ? thrown.getClass().getSimpleName() : thrown.getMessage();
    }

    private static Duration retryAfter(Answer answer) {
        String text = answer.header("retry-after");
        if (text == null || text.isEmpty() || text.length() > 9 || !text.chars().allMatch(Character::isDigit)) {
            return null;
        }
        Duration wait = Duration.ofSeconds(Long.parseLong(text));
        return wait.compareTo(RETRY_AFTER_MAX) > 0 ? RETRY_AFTER_MAX : wait;
    }

    /** Whether this attempt, if it was a write, may have changed the key or may yet. */
    boolean isOutcomeUnknown() {
        return switch (cause) {
            case CONNECT, LOCAL -> false;
            case LOST, IMPATIENT, UNEXPECTED -> true;
            // What a node refuses it has not begun; the contract says of 503 and 507 that nothing was done, and of 504 that
            // it is unknown.
            case STATUS -> !(status >= 400 && status <= 499 || status == 503 || status == 507);
        };
    }

    /** Whether another attempt may be made, as far as this failure goes. */
    boolean isRepeatable(boolean isWrite, RetryPolicy policy) {
        boolean ifUnknown = !isWrite || policy.repeatUnknownWrites();
        return switch (cause) {
            case CONNECT -> true;
            case LOST, IMPATIENT -> ifUnknown;
            // A read does no harm anywhere, and another node may be without this one's fault.
            case STATUS -> status == 503 || status == 504 && ifUnknown || status >= 500 && !isWrite;
            case UNEXPECTED, LOCAL -> false;
        };
    }

    /** Whether it speaks against the node rather than against the request. */
    boolean isNodeSuspect() {
        return cause == Cause.CONNECT || cause == Cause.LOST || cause == Cause.IMPATIENT;
    }

    /** The exception, if this failure is the end of its operation. */
    KvorumException exception(KvorumException.Course course, Replicas asked) {
        return switch (cause) {
            case CONNECT, LOST -> new UnreachableException(course, why, thrown);
            case IMPATIENT -> new OperationTimeoutException(course, why, null);
            case UNEXPECTED -> new UnexpectedAnswerException(course, why, thrown);
            case LOCAL -> new UnreachableException(course, why, thrown);
            case STATUS -> byStatus(course, asked);
        };
    }

    private KvorumException byStatus(KvorumException.Course course, Replicas asked) {
        String told = status + (why.isEmpty() ? "" : ": " + why);
        if (status == 503) {
            return new OverloadedException(course, told, retryAfter);
        }
        if (status == 504) {
            return notEnoughReplicas(course, told, asked);
        }
        if (status == 507) {
            return new DiskFullException(course, told, null);
        }
        if (status == 412) {
            return new ConditionFailedException(course, told);
        }
        if (status >= 400 && status <= 499) {
            return new RefusedException(course, told, status);
        }
        if (status >= 500 && status <= 599) {
            return new NodeFaultException(course, told, status, answer.header("kvorum-request-id"));
        }
        return new UnexpectedAnswerException(course, "status " + status + " is not one of this operation's", null);
    }

    private NotEnoughReplicasException notEnoughReplicas(
            KvorumException.Course course, String told, Replicas asked) {
        int confirmed = -1;
        int required = asked == null ? -1 : asked.ack();
        int from = asked == null ? -1 : asked.from();
        String header = answer.header("kvorum-replicas");
        if (header != null && header.matches("\\d{1,5}/\\d{1,5}")) {
            int slash = header.indexOf('/');
            confirmed = Integer.parseInt(header.substring(0, slash));
            from = Integer.parseInt(header.substring(slash + 1));
        }
        // The header does not say how many were required; the text does, where the request left it to the node.
        Matcher text = NOT_ENOUGH.matcher(why);
        if (text.find()) {
            confirmed = confirmed < 0 ? Integer.parseInt(text.group(1)) : confirmed;
            required = required < 0 ? Integer.parseInt(text.group(2)) : required;
            from = from < 0 ? Integer.parseInt(text.group(3)) : from;
        }
        return new NotEnoughReplicasException(course, told, confirmed, required, from);
    }
}

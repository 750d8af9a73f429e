package io.kvorum.client;

/** What answered does not speak as a node does, or its answer is larger than this client allows. */
public final class UnexpectedAnswerException extends KvorumException {
    private static final long serialVersionUID = 1;

    UnexpectedAnswerException(Course course, String why, Throwable cause) {
        super(course, false, why, cause);
    }
}

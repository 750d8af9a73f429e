package io.kvorum.client;

import java.net.http.HttpResponse.BodySubscriber;

/** What a {@link LineSubscription} asks for, and what the lines of its answer mean. */
interface LineSource<T> {
    /** The request, whose answer goes to {@code stream}. */
    Operation<Void> operation(BodySubscriber<Void> stream);

    /**
     * Reads a line.
     *
     * @param index the lines before it
     */
    T parse(long index, byte[] line, int length) throws Json.MalformedException;

    /** In words. */
    String words();

    /** Whether lines that are not answered may have taken effect. */
    boolean isWrite();

    /** Whether an answer of so many lines can be whole. */
    boolean isWhole(long lines);

    /** That the answer ended before its end, after so many lines. */
    KvorumException cut(KvorumException.Course course, String why, long lines, Throwable cause);

    /** A range. */
    record OfRange(Range range) implements LineSource<Entry> {
        @Override
        public Operation<Void> operation(BodySubscriber<Void> stream) {
            return Operation.range(range, stream);
        }

        @Override
        public Entry parse(long index, byte[] line, int length) throws Json.MalformedException {
            return EntryLines.parse(line, length);
        }

        @Override
        public String words() {
            return "RANGE " + range;
        }

        @Override
        public boolean isWrite() {
            return false;
        }

        @Override
        public boolean isWhole(long lines) {
            return true;
        }

        @Override
        public KvorumException cut(KvorumException.Course course, String why, long lines, Throwable cause) {
            return new RangeCutException(course, "it was cut after " + lines + " entries: " + why, lines, cause);
        }
    }

    /**
     * A batch.
     *
     * @param defaults the replicas of operations that do not say; null leaves them to the node
     */
    record OfBatch(java.util.List<Batch.Line> lines, Replicas defaults) implements LineSource<BatchResult> {
        @Override
        public Operation<Void> operation(BodySubscriber<Void> stream) {
            return Operation.batch(words(), isWrite(), Batch.body(lines, defaults), stream);
        }

        @Override
        public BatchResult parse(long index, byte[] line, int length) throws Json.MalformedException {
            if (index >= lines.size()) {
                throw new Json.MalformedException("there are more answers than operations");
            }
            Batch.Line asked = lines.get((int) index);
            Replicas replicas = asked.replicas() == null ? defaults : asked.replicas();
            return BatchResult.parse((int) index, asked, replicas, line, length);
        }

        @Override
        public String words() {
            return "BATCH of " + lines.size();
        }

        @Override
        public boolean isWrite() {
            return lines.stream().anyMatch(Batch.Line::isWrite);
        }

        @Override
        public boolean isWhole(long answers) {
            return answers == lines.size();
        }

        @Override
        public KvorumException cut(KvorumException.Course course, String why, long answers, Throwable cause) {
            return new BatchCutException(course, "it was cut after " + answers + " answers: " + why, answers, cause);
        }
    }
}

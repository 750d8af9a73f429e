/**
 * The asynchronous client of kvorum.
 *
 * <p>Begin with {@link io.kvorum.client.KvorumClient}. {@link io.kvorum.client.KvorumException} tells what can fail
 * and what that means for a write.
 *
 * <p>Nullness: no parameter may be null and no result is, unless its description says otherwise; what may be absent
 * is an {@link java.util.Optional}. A null is refused with a {@link java.lang.NullPointerException} at the call.
 */
package io.kvorum.client;

//! A queue that takes turns by token: each token has a queue of its own, and one item of each is taken in turn. So a token
//! with a thousand items delays the first item of another by one turn. Items without a token share a queue.

use std::collections::VecDeque;
use std::sync::Arc;

/// The id of the token of a request; none without one.
pub(super) type User = Option<Arc<str>>;

/// The queue; the first token's turn is next, and no token's queue is empty.
#[derive(Debug)]
pub(super) struct ByToken<T> {
    queues: VecDeque<(User, VecDeque<T>)>,
    len: usize,
}

impl<T> Default for ByToken<T> {
    fn default() -> Self {
        Self { queues: VecDeque::new(), len: 0 }
    }
}

impl<T> ByToken<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// All items, in no order that matters.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.queues.iter().flat_map(|(_, queue)| queue)
    }

    /// Adds an item of `user`.
    pub(super) fn push(&mut self, user: User, item: T) {
        self.len += 1;
        match self.queues.iter_mut().find(|(other, _)| *other == user) {
            Some((_, queue)) => queue.push_back(item),
            None => self.queues.push_back((user, VecDeque::from([item]))),
        }
    }

    /// The next item.
    pub(super) fn front(&self) -> Option<&T> {
        self.queues.front()?.1.front()
    }

    /// Takes the next item. Then it is the next token's turn, unless the item is one that `is_gone`.
    pub(super) fn pop(&mut self, is_gone: impl Fn(&T) -> bool) -> Option<T> {
        let (user, mut queue) = self.queues.pop_front()?;
        let next = queue.pop_front()?;
        self.len -= 1;
        if !queue.is_empty() {
            if is_gone(&next) {
                self.queues.push_front((user, queue));
            } else {
                self.queues.push_back((user, queue));
            }
        }
        Some(next)
    }

    /// Takes the latest item of the token with the most, if `user` would have fewer with one more; none otherwise.
    pub(super) fn pop_for(&mut self, user: &User) -> Option<T> {
        let own = self.queues.iter().find(|(other, _)| other == user).map_or(0, |(_, queue)| queue.len());
        let (_, longest) = self.queues.iter_mut().max_by_key(|(_, queue)| queue.len())?;
        if longest.len() <= own + 1 {
            return None;
        }
        self.len -= 1;
        longest.pop_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "a user is what requests have")]
    fn user(id: &str) -> User {
        Some(id.into())
    }

    /// Tokens take turns, each first come, first served; an item that is gone takes no turn.
    #[test]
    fn tokens_take_turns() {
        let mut queue = ByToken::default();
        for item in ["a1", "a2", "a3", "b1", "c1", "c2"] {
            queue.push(user(&item[..1]), item);
        }
        queue.push(None, "1");
        let mut taken = Vec::new();
        while let Some(item) = queue.pop(|item| *item == "a1") {
            taken.push(item);
        }
        assert_eq!(taken, ["a1", "a2", "b1", "c1", "1", "a3", "c2"]);
        assert!(queue.is_empty() && queue.front().is_none());
    }

    /// Room is made at the cost of the token with the most, and never for that token itself.
    #[test]
    fn the_longest_queue_gives_way() {
        let mut queue = ByToken::default();
        for item in ["a1", "a2", "a3", "b1"] {
            queue.push(user(&item[..1]), item);
        }
        assert_eq!(queue.pop_for(&user("a")), None);
        assert_eq!(queue.pop_for(&user("b")), Some("a3"));
        assert_eq!(queue.pop_for(&user("b")), None);
        assert_eq!(queue.pop_for(&user("c")), Some("a2"));
        assert_eq!((queue.len(), queue.iter().count()), (2, 2));
    }
}

//! A session's bootstrap connection, as the engine sees it.

use crate::bootstrap::tcp::{self, Sight};

/// Looks at a session's bootstrap connection. It carries no data, but it ends when the peer's process does, and it carries a
/// few words about lanes when no lane is left that could.
pub trait Witness: Send {
    /// How it is. Words that wait for [`Witness::hear`] come before its end.
    fn look(&mut self) -> Seen;

    /// True if it is one that carries words.
    fn speaks(&self) -> bool {
        false
    }

    /// True if it takes a word now.
    fn has_room(&self) -> bool {
        false
    }

    /// The next word of the peer.
    fn hear(&mut self) -> Option<&[u8]> {
        None
    }

    /// Sends a word. One that is lost because the connection is was said in vain.
    fn say(&mut self, _word: &[u8]) {}

    /// Tells the peer that we leave; it is looked at until its end is closed too.
    fn leave(&mut self) {}
}

/// What a [`Witness`] saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The connection stands, or it is silent: nothing follows from that.
    Nothing,
    /// The connection died without a word from the peer. That says nothing about the peer.
    Lost,
    /// The peer's end closed or reset it.
    Gone,
}

/// One that only looks.
impl<F: FnMut() -> Seen + Send> Witness for F {
    fn look(&mut self) -> Seen {
        self()
    }
}

impl Witness for tcp::Witness {
    fn look(&mut self) -> Seen {
        match self.poll() {
            Sight::Alive => Seen::Nothing,
            Sight::Lost => Seen::Lost,
            Sight::Closed | Sight::Reset => Seen::Gone,
        }
    }

    fn speaks(&self) -> bool {
        true
    }

    fn hear(&mut self) -> Option<&[u8]> {
        // What does not decrypt shows when it is looked at next.
        self.receive().ok().flatten()
    }

    fn has_room(&self) -> bool {
        !self.wants_write()
    }

    fn say(&mut self, word: &[u8]) {
        // It is shorter than what fits, so only the connection can be at fault, and the next look sees that.
        let _ = self.send(word);
    }

    fn leave(&mut self) {
        self.leave();
    }
}

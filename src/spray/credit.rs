//! Credits of one lane: what the peer lets us send, and what we let it. Absolute counts that wrap.

/// Control messages that only credit for a control lane may use.
pub(super) const RESERVE: u32 = 4;

/// Both directions of one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credits {
    /// Receives that the peer said it has posted, since the lane's start.
    granted: u32,
    /// Messages or immediates that we sent, since the lane's start.
    used: u32,
    /// Receives that we posted.
    posted: u32,
    /// Of these, what the peer was told of.
    reported: u32,
    /// Receives to keep posted.
    depth: u32,
    /// Receives that should be posted and are not.
    pub(super) missing: u32,
}

impl Credits {
    /// Both ends begin by posting `depth` receives, and know it of each other.
    pub(super) fn new(depth: u16) -> Credits {
        let depth = u32::from(depth);
        Credits { granted: depth, used: 0, posted: 0, reported: depth, depth, missing: depth }
    }

    /// How many more messages the peer has receives for.
    #[inline]
    pub(super) fn available(&self) -> u32 {
        (self.granted.wrapping_sub(self.used) as i32).max(0) as u32
    }

    /// True if no receive is posted.
    pub(super) fn is_empty(&self) -> bool {
        self.missing >= self.depth
    }

    #[inline]
    pub(super) fn spend(&mut self) {
        self.used = self.used.wrapping_add(1);
    }

    /// The message was not sent after all.
    pub(super) fn unspend(&mut self) {
        self.used = self.used.wrapping_sub(1);
    }

    /// The peer reports its count. False if it jumps by more than any peer posts.
    pub(super) fn grant(&mut self, posted: u32) -> bool {
        let step = posted.wrapping_sub(self.granted) as i32;
        if step > 1 << 16 {
            return false;
        }
        if step > 0 {
            self.granted = posted;
        }
        true
    }

    /// A receive goes to the backend.
    #[inline]
    pub(super) fn post(&mut self) {
        self.posted = self.posted.wrapping_add(1);
        self.missing -= 1;
    }

    /// The backend did not take it.
    pub(super) fn unpost(&mut self) {
        self.posted = self.posted.wrapping_sub(1);
        self.missing += 1;
    }

    /// The count to report; it counts as told.
    pub(super) fn report(&mut self) -> u32 {
        self.reported = self.posted;
        self.posted
    }

    /// True when so many receives are unreported that the peer should be told.
    ///
    /// A quarter, so that at most [`RESERVE`] such reports are under way before the peer has answered one.
    #[inline]
    pub(super) fn due(&self) -> bool {
        self.posted.wrapping_sub(self.reported) as i32 >= (self.depth / RESERVE) as i32
    }

    /// True when enough receives are missing to post a batch of them.
    #[inline]
    pub(super) fn post_due(&self) -> bool {
        self.missing >= (self.depth / 16).clamp(1, 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_wrap() {
        let mut c = Credits::new(16);
        for round in 0..100u32 {
            assert_eq!(c.available(), 16);
            for _ in 0..16 {
                c.spend();
            }
            assert_eq!(c.available(), 0);
            assert!(c.grant(16 * (round + 2)));
        }
        c.granted = u32::MAX - 3;
        c.used = u32::MAX - 3;
        assert!(c.grant(12));
        assert_eq!(c.available(), 16);
        assert!(c.grant(3), "an old report is no violation");
        assert_eq!(c.available(), 16);
        assert!(!c.grant(1 << 20));
    }

    #[test]
    fn a_report_is_due_after_a_quarter() {
        let mut c = Credits::new(64);
        for _ in 0..64 {
            c.post();
        }
        assert!(!c.due(), "the first ones are known");
        c.missing += 16;
        for i in 0..16 {
            assert!(!c.due(), "after {i}");
            c.post();
        }
        assert!(c.due());
        assert_eq!(c.report(), 80);
        assert!(!c.due());
    }
}

//! Rules that the tests of this crate break on purpose, one at a time, to see that the simulation notices.

/// A rule to break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutation {
    /// A lane is called gone before everything of it has come back and it was destroyed.
    FlushWait,
    /// What is said of an older generation of a lane counts for the present one.
    Generation,
    /// Questions and answers name a slot instead of a message.
    AnswerKey,
    /// Answers do not look at the bitmap.
    Bitmap,
    /// A message ends though nobody knows where a part of it is.
    Quarantine,
    /// What a lost lane carried is sent again without asking.
    SingleCarrier,
}

#[cfg(test)]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule in this thread, or none.
#[cfg(test)]
pub(crate) fn set_broken(rule: Option<Mutation>) {
    BROKEN.set(rule);
}

/// True if `rule` is broken: never outside tests.
#[cfg(test)]
pub(crate) fn broken(rule: Mutation) -> bool {
    BROKEN.get() == Some(rule)
}

/// True if `rule` is broken: never outside tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn broken(_: Mutation) -> bool {
    false
}
